#include "quantizer_program.h"

#ifndef QUATRAIN_HAVE_TORCH
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "program_arguments.h"
#endif

namespace quatrain {

#if defined(QUATRAIN_HAVE_TORCH) || !defined(QUATRAIN_HAVE_QUANTIZER)
void continue_as_quantizer() {}
#else
void continue_as_quantizer() {
  constexpr const char* kStarted = "QUATRAIN_QUANTIZER_STARTED";
  std::error_code no_proc;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", no_proc);
  require(!no_proc, "/proc/self/exe: {}: quatrain finds quatrain-quantizer, which quantises, by it",
          no_proc.message());
  const std::string quantizer = self.parent_path() / "quatrain-quantizer";
  require(std::getenv(kStarted) == nullptr,
          "{}: is this program, not the one that quantises; install both again", quantizer);
  ::setenv(kStarted, "1", 1);
  execute_with_same_arguments(quantizer.c_str());
  const int reason = errno;
  fail("{}: {}: what quantises lies there; install both programs again, side by side", quantizer,
       std::strerror(reason));
}
#endif

}  // namespace quatrain
