// What a quantising run has finished, on disk beside its output, so that a killed run continues.
#pragma once

#include <functional>
#include <map>
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
  /// An entry that is not what Journal::write() made is an error that names the file and what is wrong in it.
  explicit JournalEntry(const fs::path& path);

  /// An object; what its fields hold is for the reader to check (json_get).
  const Json& facts() const { return facts_; }
  /// How an error about the contents begins: the file, that it is damaged, and what to do.
  std::string where() const;
  /// The bytes of `part` as values of T. Throws when the entry lacks it or it ends within a value.
  template <typename T>
  std::vector<T> values(const std::string& part) const {
    std::vector<T> all(bytes(part, sizeof(T)).size() / sizeof(T));
    copy(part, std::as_writable_bytes(std::span<T>(all)));
    return all;
  }
  /// Copies a part of exactly this size; its pages then leave the process.
  void copy(const std::string& part, std::span<std::byte> out) const;
  /// Throws unless the part is a tensor of this shape with elements of `unit` bytes: to be asked before
  /// memory for a shape is taken that only the facts vouch for.
  void require_shape(const std::string& part, std::span<const int64_t> shape, size_t unit) const;

 private:
  std::span<const std::byte> bytes(const std::string& part, size_t unit) const;

  MappedFile file_;
  Json facts_;
  std::map<std::string, std::span<const std::byte>>
      parts_;  // in file_, whose map stays where it is in a move
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
