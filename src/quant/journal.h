// What a quantising run has finished, on disk beside its output, so that a killed run continues.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/json.h"

namespace quatrain {

/// One finished step: facts, and byte strings by name.
class JournalEntry {
 public:
  explicit JournalEntry(const fs::path& path);

  const Json& facts() const { return facts_; }
  /// The bytes of `part` as values of T. Throws when the entry lacks it or it ends within a value.
  template <typename T>
  std::vector<T> values(const std::string& part) const {
    std::vector<T> all(bytes(part, sizeof(T)).size() / sizeof(T));
    copy(part, std::as_writable_bytes(std::span<T>(all)));
    return all;
  }
  /// Copies a part of exactly this size; its pages then leave the process.
  void copy(const std::string& part, std::span<std::byte> out) const;

 private:
  std::span<const std::byte> bytes(const std::string& part, size_t unit) const;

  MappedFile file_;
  Json facts_, parts_;
  size_t begin_ = 0;
};

/// OUTPUT.journal, a directory of entries. Each entry is complete or absent, whatever moment the process is
/// killed at.
class Journal {
 public:
  using Parts = std::vector<std::pair<std::string, std::span<const std::byte>>>;

  /// `run` says what decides the result: model, recipe, samples. Without `resume` an unfinished run's journal
  /// is an error that says how far it came; with it, a journal of another run is one that names the
  /// difference. The caller holds the output (ArtifactWriter), so that no other process is here.
  Journal(const fs::path& output, const Json& run, bool resume);
  /// A journal without a finished layer is removed.
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  static fs::path path_of(const fs::path& output);

  std::optional<JournalEntry> find(const std::string& name) const;
  bool has(const std::string& name) const { return fs::exists(entry_path(name)); }

  /// Called with the number of a part right before its bytes are read, and when they have been handed to the
  /// system.
  struct Hooks {
    std::function<void(size_t)> before, behind;
  };
  /// Durable when it returns.
  void write(const std::string& name, const Json& facts, const Parts& parts, const Hooks& hooks = {});
  void erase(const std::string& name);

  /// Layers that are finished: entries layer_name(0), layer_name(1), ...
  int64_t layers() const;
  static std::string layer_name(int64_t layer);

  /// The output is in place, the journal no longer needed.
  void remove();
  /// The same from outside a run.
  static void discard(const fs::path& output);

 private:
  fs::path entry_path(const std::string& name) const;

  fs::path directory_;
};

}  // namespace quatrain
