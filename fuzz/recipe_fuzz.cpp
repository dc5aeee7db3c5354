// Recipes: any bytes as TOML; the text up to the first NUL is the recipe, the rest one --set override.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "quant/recipe.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t end = text.find('\0');
  std::vector<std::string> overrides;
  if (end != std::string_view::npos) overrides.emplace_back(text.substr(end + 1));
  try {
    const quatrain::Recipe recipe = quatrain::parse_recipe(text.substr(0, end), "fuzz", overrides);
    if (!(quatrain::parse_recipe(recipe.to_toml(), "written") == recipe)) std::abort();
    (void)recipe.layers_with_8_bits(30);
  } catch (const quatrain::Error&) {  // the only way to fail
  }
  return 0;
}
