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
  int64_t seed = 0;  // of every random choice (splitmix64, base/rng.h)

  // Exact before quantisation: merged into the weights, or applied online to an input.
  struct Transforms {
    std::string residual = "none";  // none | hadamard | top1-pca-offset
    int64_t residual_group = 128;   // channels that share one offset (top1-pca-offset)
    std::string value = "none";     // none | hadamard-per-head | balanced
    std::string key = "none";       // none | hadamard-per-head | balanced
    std::string inputs = "none";    // of q, k, v and of gate, up: none | balanced-block
    int64_t inputs_block = 64;
    std::string output = "none";  // of o_proj's input: none | hadamard
    std::string down = "none";    // none | hadamard | grouped-offset-hadamard | balanced-block
    int64_t down_block = 128;
    bool operator==(const Transforms&) const = default;
  } transform;

  struct Weights {
    std::string method = "rtn";  // rtn | gptq | error-aware
    int bits = 4;                // 4, or 8: every block has its low nibbles
    int64_t group = 0;           // 0: one scale a row
    std::string clip = "none";   // none | mse
    double damping = 0.01;       // gptq and error-aware: share of mean diag H
    double target = 0;           // error-aware: share of the way from the quantised to the unquantised input
    double stream = 0;           // error-aware: share of the residual stream's error that o and down aim at
    bool operator==(const Weights&) const = default;
  } weights;

  struct Residual {
    double budget = 0;                    // share of the 16-row blocks that get a low nibble
    std::string score = "residual-norm";  // residual-norm | weight-max | random | hessian-diagonal
    std::string scope = "matrix";         // where the budget holds: each matrix
    int64_t block = 128;                  // columns of a block
    bool operator==(const Residual&) const = default;
  } residual;

  struct Activations {
    int bits = 4;            // 4, 8, or 16 for unquantised
    int64_t group = 0;       // 0: the whole token
    int64_t down_group = 0;  // of down_proj's input; 0: as `group`
    bool symmetric = false;
    std::string layers8 = "none";  // none | first3-last | layer numbers from 0, as "0,1,2,29"
    bool operator==(const Activations&) const = default;
  } activations;

  struct Kv {
    int bits = 4;                // 4, 8, or 16 for unquantised
    std::string group = "head";  // "head" or a number
    bool symmetric = false;
    int64_t sink_tokens = 0;
    bool operator==(const Kv&) const = default;
  } kv;

  struct Calibration {
    std::string text = "wikitext2-train";  // a shipped text or a file
    int64_t samples = 128;
    int64_t length = 2048;  // tokens of a sample
    bool operator==(const Calibration&) const = default;
  } calibration;

  int embedding_bits = 8;  // 4, 8 or 16, one scale a row
  int lm_head_bits = 8;
  bool operator==(const Recipe&) const = default;

  bool transforms() const { return !(transform == Transforms{}); }
  /// Whether weights are chosen from the inputs that the quantised layers before them give.
  bool follows_stream() const {
    return weights.method != "rtn" || (residual.budget > 0 && residual.score == "hessian-diagonal");
  }
  /// Whether calibration text is read.
  bool calibrated() const;
  /// Every field, defaults and overrides included, as parse_recipe reads it back: the artifact's recipe.toml.
  std::string to_toml() const;
  /// Layers whose linears take 8-bit inputs (activations.layers8), ascending, for a model of `layers` layers.
  /// A number past the last layer is an error.
  std::vector<int64_t> layers_with_8_bits(int64_t layers) const;
};

/// `name` of a shipped recipe, or the path of a file. `overrides` are "stage.field=value". Unknown or
/// contradictory fields are errors that name the field and the legal values.
Recipe load_recipe(const std::string& name_or_file, const std::vector<std::string>& overrides = {});
Recipe parse_recipe(std::string_view toml, std::string_view where,
                    const std::vector<std::string>& overrides = {});
/// Names of the shipped recipes.
std::vector<std::string> shipped_recipes();

/// `group` where it divides `width`, else the largest power of two below it that does (logged by the caller).
/// 0 (the whole row) stays 0.
int64_t fitting_group(int64_t width, int64_t group);

}  // namespace quatrain
