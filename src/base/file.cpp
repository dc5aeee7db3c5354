#include "base/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace quatrain {
namespace {

std::string system_message() {
  return std::generic_category().message(errno);
}

void sync_directory(const fs::path& directory) {
  const int descriptor = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY);
  if (descriptor < 0) return;  // some file systems do not open directories; the rename itself stands
  ::fsync(descriptor);
  ::close(descriptor);
}

fs::path parent_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

// Keeps a working name for this run; the lock ends with the descriptor, a kill included. Between open and
// lock another run may have renamed it into place: what is locked must still be what the name means.
void claim(int descriptor, const fs::path& temporary, const fs::path& path) {
  const bool locked = ::flock(descriptor, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
  struct stat held {
  }, named{};
  if (locked && ::fstat(descriptor, &held) == 0 && ::stat(temporary.c_str(), &named) == 0 &&
      held.st_dev == named.st_dev && held.st_ino == named.st_ino)
    return;
  ::close(descriptor);
  fail("{}: another run is writing it; let that end, or choose another name", path.string());
}

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "no regular file";
}

// Opens for reading; `size` is what the file has now. Pipes and devices may never end, so they are refused
// before a byte is read (O_NONBLOCK: opening a pipe would wait for its writer).
int open_regular(const fs::path& path, size_t& size) {
  struct stat status {};
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    const std::string reason = system_message();
    const bool special = ::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode);  // a socket
    require(!special, "{}: is {}, a file is needed", path.string(), kind_of(status.st_mode));
    fail("{}: cannot open: {}", path.string(), reason);
  }
  if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(descriptor);
    fail("{}: is {}, a file is needed", path.string(), kind_of(status.st_mode));
  }
  size = static_cast<size_t>(status.st_size);
  return descriptor;
}

std::string read_gzip(const fs::path& path, size_t limit) {
  size_t packed = 0;
  const int descriptor = open_regular(path, packed);
  gzFile file = gzdopen(descriptor, "rb");
  if (file == nullptr) ::close(descriptor);
  require(file != nullptr, "{}: cannot open: {}", path.string(), system_message());
  std::unique_ptr<gzFile_s, int (*)(gzFile)> close(file, gzclose);
  std::string text;
  std::vector<char> chunk(1 << 20);
  for (;;) {
    const int count = gzread(file, chunk.data(), static_cast<unsigned>(chunk.size()));
    if (count < 0) {
      int code = 0;
      fail("{}: not a sound gzip file: {}", path.string(), gzerror(file, &code));
    }
    if (count == 0) break;
    text.append(chunk.data(), static_cast<size_t>(count));
    require(text.size() <= limit, "{}: unpacks to more than {} bytes", path.string(), limit);
  }
  int code = Z_OK;
  gzerror(file, &code);
  require(code == Z_OK || code == Z_STREAM_END, "{}: the gzip stream is truncated", path.string());
  return text;
}

}  // namespace

std::string read_file(const fs::path& path, size_t limit) {
  if (path.extension() == ".gz") return read_gzip(path, limit);
  size_t size = 0;
  const int descriptor = open_regular(path, size);
  if (size > limit) ::close(descriptor);
  require(size <= limit, "{}: cannot read: is larger than {} bytes", path.string(), limit);
  std::string text;
  text.reserve(size);
  std::vector<char> chunk(1 << 20);
  for (;;) {
    const ssize_t count = ::read(descriptor, chunk.data(), chunk.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 || text.size() + static_cast<size_t>(count) > limit) {
      const std::string reason = count < 0 ? system_message() : fmt::format("is larger than {} bytes", limit);
      ::close(descriptor);
      fail("{}: cannot read: {}", path.string(), reason);
    }
    if (count == 0) break;
    text.append(chunk.data(), static_cast<size_t>(count));
  }
  ::close(descriptor);
  return text;
}

MappedFile::MappedFile(const fs::path& path) : path_(path) {
  const int descriptor = open_regular(path, size_);
  if (size_ > 0) {
    void* map = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (map == MAP_FAILED) {
      ::close(descriptor);
      fail("{}: cannot map: {}", path.string(), system_message());
    }
    data_ = static_cast<const std::byte*>(map);
  }
  ::close(descriptor);
}

void MappedFile::reset() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
  data_ = nullptr;
  size_ = 0;
}

MappedFile::~MappedFile() {
  reset();
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    reset();
    path_ = std::move(other.path_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

AtomicFile::AtomicFile(fs::path path) : path_(std::move(path)), temporary_(path_) {
  require(path_.has_filename(), "\"{}\": no name of a file to write", path_.string());
  std::error_code error;
  require(!fs::is_directory(path_, error), "{}: is a directory; name a file to write", path_.string());
  // A rename would put a plain file in the place of a device such as /dev/null.
  require(!fs::exists(path_, error) || fs::is_regular_file(path_, error),
          "{}: is not a regular file; name a file to write", path_.string());
  temporary_ += ".tmp";
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0644);
  require(descriptor_ >= 0, "{}: cannot create: {}", temporary_.string(), system_message());
  claim(descriptor_, temporary_, path_);
  if (::ftruncate(descriptor_, 0) != 0) {  // what a killed run left
    ::close(descriptor_);
    fail("{}: cannot empty: {}", temporary_.string(), system_message());
  }
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  ::unlink(temporary_.c_str());  // while it is locked: afterwards the name may be another run's
  ::close(descriptor_);
}

void AtomicFile::write(const void* data, size_t size) {
  const char* next = static_cast<const char*>(data);
  for (size_t left = size; left > 0;) {
    const ssize_t count = ::write(descriptor_, next, left);
    if (count < 0 && errno == EINTR) continue;
    require(count > 0, "{}: cannot write: {}", path_.string(), system_message());
    next += count;
    left -= static_cast<size_t>(count);
  }
  size_ += size;
}

void AtomicFile::write_at(size_t offset, const void* data, size_t size) {
  require(offset + size <= size_, "{}: write_at past the end", path_.string());
  const ssize_t count = ::pwrite(descriptor_, data, size, static_cast<off_t>(offset));
  require(count == static_cast<ssize_t>(size), "{}: cannot write: {}", path_.string(), system_message());
}

void AtomicFile::commit() {
  require(::fsync(descriptor_) == 0, "{}: cannot flush to disk: {}", path_.string(), system_message());
  require(::rename(temporary_.c_str(), path_.c_str()) == 0, "{}: cannot rename into place: {}",
          path_.string(), system_message());
  ::close(std::exchange(descriptor_, -1));
  sync_directory(parent_of(path_));
}

void write_file(const fs::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

AtomicDirectory::AtomicDirectory(fs::path path) : path_(std::move(path)) {
  path_ = path_.lexically_normal();
  if (!path_.has_filename()) path_ = path_.parent_path();  // "out/" and "out" are one directory
  require(path_.has_filename() && path_ != "." && path_.filename() != "..",
          "\"{}\": no name of a directory to write; choose one that does not exist", path_.string());
  std::error_code error;
  require(!fs::exists(fs::symlink_status(path_, error)) ||
              (fs::is_directory(path_, error) && fs::is_empty(path_, error)),
          "{}: exists and is not an empty directory; remove it or choose another name", path_.string());
  temporary_ = path_;
  temporary_ += ".partial";
  fs::create_directories(temporary_, error);
  require(!error, "{}: cannot create: {}", temporary_.string(), error.message());
  lock_ = ::open(temporary_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  require(lock_ >= 0, "{}: cannot open: {}", temporary_.string(), system_message());
  claim(lock_, temporary_, path_);
}

AtomicDirectory::~AtomicDirectory() {
  std::error_code error;
  if (!keep_ && !temporary_.empty()) fs::remove_all(temporary_, error);
  ::close(lock_);
}

void AtomicDirectory::clear() {
  for (const fs::directory_entry& entry : fs::directory_iterator(temporary_)) fs::remove_all(entry.path());
}

void AtomicDirectory::commit() {
  std::error_code error;
  sync_directory(temporary_);
  if (fs::is_directory(path_, error)) fs::remove(path_, error);  // empty: the constructor saw to that
  fs::rename(temporary_, path_, error);
  require(!error, "{}: cannot rename into place: {}", path_.string(), error.message());
  sync_directory(parent_of(path_));
  temporary_.clear();
}

fs::path find_shipped(const fs::path& relative) {
  std::vector<fs::path> roots;
  if (const char* root = std::getenv("QUATRAIN_DATA")) roots.emplace_back(root);
  std::error_code error;
  const fs::path executable = fs::read_symlink("/proc/self/exe", error);
  if (!error) roots.push_back(executable.parent_path().parent_path() / "share" / "quatrain");
  roots.emplace_back(QUATRAIN_DATADIR);
  roots.emplace_back(QUATRAIN_SOURCE_DIR);
  std::string looked;
  for (const fs::path& root : roots) {
    if (fs::exists(root / relative, error)) return root / relative;
    looked += "\n  " + (root / relative).string();
  }
  fail("{}: not found; looked at:{}\nset QUATRAIN_DATA to the folder that holds it", relative.string(),
       looked);
}

}  // namespace quatrain
