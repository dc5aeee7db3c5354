#include "quantizer_program.h"

#ifndef QUATRAIN_HAVE_TORCH
#include <filesystem>

#include "program_arguments.h"
#endif

namespace quatrain {

#ifdef QUATRAIN_HAVE_TORCH
void continue_as_quantizer() {}
#else
void continue_as_quantizer() {
  std::error_code ignored;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", ignored);
  const std::filesystem::path quantizer = self.parent_path() / "quatrain-quantizer";
  if (!self.empty() && std::filesystem::exists(quantizer, ignored))
    execute_with_same_arguments(quantizer.c_str());
}
#endif

}  // namespace quatrain
