// The fields of a recipe file: which there are, what is legal in each, how each is read and written.
#pragma once

#include <toml++/toml.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quant/recipe.h"

namespace quatrain {

/// One field: where its value goes (false: the value is not legal), and how it is written back.
struct RecipeField {
  std::string_view stage;  // empty at the top level
  std::string_view name;
  std::string legal;
  std::function<bool(Recipe&, const toml::node&)> set;
  std::function<std::string(const Recipe&)> text;

  std::string path() const {
    return stage.empty() ? std::string(name) : std::string(stage) + "." + std::string(name);
  }
};

/// All, stage by stage, in the order in which they are written.
const std::vector<RecipeField>& recipe_fields();

bool is_stage(std::string_view name);

/// The names that may stand at the top level (stage empty) or inside a stage.
std::string legal_names(std::string_view stage);

/// Layer numbers of "0,1,29"; nullopt when the text is anything else or a number comes twice.
std::optional<std::vector<int64_t>> parse_layers(std::string_view text);

/// A basic string on one line; the library's own writer picks forms that do not read back as the same text.
std::string toml_string(const std::string& text);

}  // namespace quatrain
