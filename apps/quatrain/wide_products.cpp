#include "wide_products.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string_view>

#include "program_arguments.h"

namespace quatrain {
namespace {

constexpr const char* kVariable = "OPENBLAS_CORETYPE";

#if defined(__x86_64__)
bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512cd");
}
#else
bool has_avx512() {
  return false;
}
#endif

// Of OpenBLAS, where it is what the program is linked with; empty otherwise.
std::string_view blas_text(const char* function) {
  const auto get = reinterpret_cast<const char* (*)()>(::dlsym(RTLD_DEFAULT, function));
  return get == nullptr ? std::string_view() : get();
}

bool is_narrow(std::string_view core) {
  return core == "Haswell" || core == "Zen" || core == "Excavator" || core == "Sandybridge" ||
         core == "Nehalem" || core == "Prescott";
}

}  // namespace

void restart_with_wide_products() {
  if (std::getenv(kVariable) != nullptr || !has_avx512()) return;
  if (!is_narrow(blas_text("openblas_get_corename"))) return;
  if (blas_text("openblas_get_config").find("DYNAMIC_ARCH") == std::string_view::npos) return;
  ::setenv(kVariable, "SkylakeX", 1);
  execute_with_same_arguments("/proc/self/exe");  // where it fails the narrow ones do
}

}  // namespace quatrain
