// Recipes: TOML files of independent stages (docs/recipes.md), read and validated.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/number_format.h"

namespace quatrain {

/// Values are plain; `kind` fields are the names in the file. A field of a stage that does not exist is an
/// error.
struct Recipe {
  std::string name;
  std::string description;

  struct Weights {
    std::string method = "rtn";  // rtn (calibrated methods add theirs)
    int bits = 4;
    int64_t group = 0;          // 0: one scale a row
    std::string clip = "none";  // none | mse
  } weights;

  struct Residual {
    double budget = 0;  // share of the 16-row blocks that get a low nibble
    std::string score = "residual-norm";
    std::string scope = "matrix";
    int64_t block = 128;
  } residual;

  struct Activations {
    int bits = 4;
    int64_t group = 0;
    bool symmetric = false;
    std::string layers8 = "none";
  } activations;

  struct Kv {
    int bits = 4;
    std::string group = "head";  // "head" or a number
    bool symmetric = false;
    int64_t sink_tokens = 0;
  } kv;

  int embedding_bits = 8;
  int lm_head_bits = 8;

  /// The file's text with overrides applied: what goes into the artifact's recipe.toml.
  std::string to_toml() const;
};

/// `name` of a shipped recipe, or the path of a file. `overrides` are "stage.field=value". Unknown or
/// contradictory fields are errors that name the field and the legal values.
Recipe load_recipe(const std::string& name_or_file, const std::vector<std::string>& overrides = {});
Recipe parse_recipe(std::string_view toml, std::string_view where,
                    const std::vector<std::string>& overrides = {});
/// Names of the shipped recipes.
std::vector<std::string> shipped_recipes();

/// `group` where it divides `width`, else the largest power of two below it that does (logged by the caller).
int64_t fitting_group(int64_t width, int64_t group);

}  // namespace quatrain
