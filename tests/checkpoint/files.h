// Temporary files and error checks of the checkpoint tests.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/file.h"

namespace quatrain {

/// A directory that goes with the test.
class TempDir {
 public:
  TempDir() {
    static std::atomic<int> count{0};
    path_ = fs::temp_directory_path() / fmt::format("quatrain-checkpoint-{}-{}", ::getpid(), count++);
    fs::create_directories(path_);
  }
  ~TempDir() { fs::remove_all(path_); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const fs::path& path() const { return path_; }
  fs::path operator/(const std::string& name) const { return path_ / name; }

 private:
  fs::path path_;
};

/// The value's bytes, little-endian.
template <typename T>
std::string bytes_of(const T& value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  std::string bytes;
  for (const T& value : values) bytes += bytes_of(value);
  return bytes;
}

inline std::span<const std::byte> as_bytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

/// A safetensors file of this header text and data.
inline std::string safetensors_file(const std::string& header, const std::string& data) {
  return bytes_of(uint64_t{header.size()}) + header + data;
}

/// Runs `action` in a child whose files may grow to `limit` bytes, as on a full disk. True when it failed
/// with an error that says so.
inline bool fails_on_full_disk(rlim_t limit, const std::function<void()>& action) {
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit size{limit, limit};
    setrlimit(RLIMIT_FSIZE, &size);
    int status = 1;
    try {
      action();
    } catch (const Error& error) {
      status = std::string_view(error.what()).find("cannot write") != std::string_view::npos ? 0 : 2;
    }
    _exit(status);
  }
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/// Runs `action`, which must throw an Error whose text holds every one of `parts`.
inline void expect_error(const std::function<void()>& action, std::initializer_list<std::string_view> parts) {
  try {
    action();
  } catch (const Error& error) {
    for (const std::string_view part : parts)
      EXPECT_NE(std::string_view(error.what()).find(part), std::string_view::npos)
          << "\"" << part << "\" is not in: " << error.what();
    return;
  }
  ADD_FAILURE() << "no error; expected one with \"" << *parts.begin() << "\"";
}

}  // namespace quatrain
