// Files: whole reads, read-only maps, and writes that are either complete under their final name or not
// there.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace quatrain {

namespace fs = std::filesystem;

/// The bytes of a file; a name ending in .gz is unpacked. Throws with the path; refuses more than `limit`
/// bytes.
std::string read_file(const fs::path& path, size_t limit = size_t{1} << 32);

/// A read-only map of a whole file. Moves, does not copy.
class MappedFile {
 public:
  explicit MappedFile(const fs::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const fs::path& path() const { return path_; }

 private:
  void reset();
  fs::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

/// A file being written beside its final name: write() appends, commit() flushes to disk and renames.
/// Destroyed without commit() (an error, a full disk), it removes what it wrote. A directory, a device or a
/// name that another run is writing is an error at construction.
class AtomicFile {
 public:
  explicit AtomicFile(fs::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, size_t size);
  void write(std::string_view text) { write(text.data(), text.size()); }
  /// Writes at an absolute offset that write() has already passed (headers filled in late).
  void write_at(size_t offset, const void* data, size_t size);
  size_t size() const { return size_; }
  void commit();

 private:
  fs::path path_;
  fs::path temporary_;
  int descriptor_ = -1;
  size_t size_ = 0;
};

/// Writes `text` atomically (AtomicFile in one call).
void write_file(const fs::path& path, std::string_view text);

/// A directory being filled beside its final name; commit() renames it there in one step. An existing
/// directory of that name is an error at construction unless it is empty, and so is another run that fills
/// it. Destroyed without commit(), it is removed, unless keep() was called (a resumable run keeps its parts).
class AtomicDirectory {
 public:
  explicit AtomicDirectory(fs::path path);
  ~AtomicDirectory();
  AtomicDirectory(const AtomicDirectory&) = delete;
  AtomicDirectory& operator=(const AtomicDirectory&) = delete;

  /// Where to write; the final name with ".partial" at its end.
  const fs::path& path() const { return temporary_; }
  void keep() { keep_ = true; }
  /// Removes what a killed run left there, for one that does not resume.
  void clear();
  void commit();

 private:
  fs::path path_;
  fs::path temporary_;
  bool keep_ = false;
  int lock_ = -1;
};

/// A file or directory that ships with the program (recipes/, data/), by relative name: looked for in
/// $QUATRAIN_DATA, beside the executable's ../share/quatrain, the install prefix and the source tree.
/// Throws with the places that were looked at.
fs::path find_shipped(const fs::path& relative);

}  // namespace quatrain
