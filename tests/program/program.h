// Runs the built program as a user would, and watches how it ends.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "base/file.h"

namespace quatrain {

struct ProgramOptions {
  std::string input = {};        // on stdin, which then ends
  int64_t file_limit = -1;       // bytes that a file may have: beyond it a write fails as on a full disk
  std::string output = "";       // stdout goes to this file instead of into `out`
  std::vector<int> closed = {};  // descriptors that the program starts without
  std::string program = "";      // another one than the built quatrain
};

struct ProgramEnd {
  int code = -1;  // exit code; -1 when a signal ended it
  int signal = 0;
  std::string out, err;
};

class Program {
 public:
  explicit Program(const std::vector<std::string>& arguments, const ProgramOptions& options = {});
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  /// Sends `signal` as soon as `when` holds. False when the program ended before.
  bool interrupt(int signal, const std::function<bool()>& when);
  /// Waits for the end (killed after a minute of silence).
  ProgramEnd wait();

 private:
  bool ended();

  pid_t process_ = -1;
  fs::path folder_;
  bool collected_ = false;
  int status_ = 0;
};

ProgramEnd run_program(const std::vector<std::string>& arguments, const ProgramOptions& options = {});

/// A fresh folder under the build tree, named after the running test.
fs::path fresh_test_folder();
/// Bytes of all files below `path`; 0 where there is none.
uint64_t bytes_below(const fs::path& path);
/// Names in a directory, sorted.
std::vector<std::string> names_in(const fs::path& directory);

}  // namespace quatrain
