#include "quantizer_program.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "program_arguments.h"

namespace quatrain {

// Set to the version of the program that went on as this one.
[[maybe_unused]] constexpr const char* kStarted = "QUATRAIN_QUANTIZER_STARTED";

#if defined(QUATRAIN_HAVE_TORCH)
void continue_as_quantizer() {
  const char* caller = std::getenv(kStarted);
  require(caller == nullptr || std::strcmp(caller, QUATRAIN_VERSION) == 0,
          "quatrain is of version {}, the quatrain-quantizer beside it of {}; install both again", caller,
          QUATRAIN_VERSION);
}
#elif !defined(QUATRAIN_HAVE_QUANTIZER)
void continue_as_quantizer() {}
#else
void continue_as_quantizer() {
  std::error_code no_proc;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", no_proc);
  require(!no_proc, "/proc/self/exe: {}: quatrain finds quatrain-quantizer, which quantises, by it",
          no_proc.message());
  const std::string quantizer = self.parent_path() / "quatrain-quantizer";
  require(std::getenv(kStarted) == nullptr,
          "{}: is this program, not the one that quantises; install both again", quantizer);
  ::setenv(kStarted, QUATRAIN_VERSION, 1);
  execute_with_same_arguments(quantizer.c_str());
  const int reason = errno;
  fail("{}: {}: what quantises lies there; install both programs again, side by side", quantizer,
       std::strerror(reason));
}
#endif

}  // namespace quatrain
