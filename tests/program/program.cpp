#include "program.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <stdexcept>
#include <thread>

namespace quatrain {
namespace {

void redirect(const fs::path& file, int flags, int target) {
  const int descriptor = open(file.c_str(), flags, 0600);
  if (descriptor < 0 || dup2(descriptor, target) < 0) _exit(126);
  close(descriptor);
}

}  // namespace

Program::Program(const std::vector<std::string>& arguments, const ProgramOptions& options) {
  std::string name = (fs::temp_directory_path() / "quatrain-program-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
  folder_ = name;
  write_file(folder_ / "in", options.input);
  const std::string program = options.program.empty() ? QUATRAIN_BINARY_DIR "/bin/quatrain" : options.program;
  std::vector<const char*> argv = {program.c_str()};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  argv.push_back(nullptr);
  process_ = fork();
  if (process_ < 0) throw std::runtime_error("cannot fork");
  if (process_ > 0) return;
  redirect(folder_ / "in", O_RDONLY, STDIN_FILENO);
  redirect(options.output.empty() ? folder_ / "out" : fs::path(options.output), O_WRONLY | O_CREAT,
           STDOUT_FILENO);
  redirect(folder_ / "err", O_WRONLY | O_CREAT, STDERR_FILENO);
  if (options.file_limit >= 0) {
    const rlimit limit{static_cast<rlim_t>(options.file_limit), static_cast<rlim_t>(options.file_limit)};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  for (const int descriptor : options.closed) close(descriptor);
  execv(program.c_str(), const_cast<char* const*>(argv.data()));
  _exit(127);
}

Program::~Program() {
  if (!ended()) {
    kill(process_, SIGKILL);
    waitpid(process_, &status_, 0);
  }
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

bool Program::ended() {
  if (!collected_) collected_ = waitpid(process_, &status_, WNOHANG) == process_;
  return collected_;
}

bool Program::interrupt(int signal, const std::function<bool()>& when) {
  while (!when()) {
    if (ended()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return !ended() && kill(process_, signal) == 0;
}

ProgramEnd Program::wait() {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(5);
  while (!ended()) {
    if (std::chrono::steady_clock::now() > deadline) kill(process_, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ProgramEnd end;
  if (WIFEXITED(status_)) end.code = WEXITSTATUS(status_);
  if (WIFSIGNALED(status_)) end.signal = WTERMSIG(status_);
  if (fs::exists(folder_ / "out")) end.out = read_file(folder_ / "out");
  if (fs::exists(folder_ / "err")) end.err = read_file(folder_ / "err");
  return end;
}

ProgramEnd run_program(const std::vector<std::string>& arguments, const ProgramOptions& options) {
  return Program(arguments, options).wait();
}

fs::path fresh_test_folder() {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  fs::path folder = fs::path(QUATRAIN_BINARY_DIR) / "program-tests" /
                    (std::string(test->test_suite_name()) + "." + test->name());
  fs::remove_all(folder);
  fs::create_directories(folder);
  return folder;
}

uint64_t bytes_below(const fs::path& path) {
  std::error_code error;
  if (fs::is_regular_file(path, error)) return fs::file_size(path, error);
  uint64_t bytes = 0;
  fs::recursive_directory_iterator entry(path, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    std::error_code gone;
    const auto size = entry->is_regular_file(gone) ? entry->file_size(gone) : 0;
    if (!gone) bytes += size;
  }
  return bytes;
}

std::vector<std::string> names_in(const fs::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace quatrain
