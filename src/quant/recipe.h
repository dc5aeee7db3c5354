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
  static constexpr double kSearchAlpha = -1;  // transform.alpha = "search"

  std::string name;
  std::string description;
  int64_t seed = 0;  // of every random choice (splitmix64, base/rng.h)

  // Exact before quantisation: merged into the weights, or applied online to an input.
  struct Transforms {
    std::string residual = "none";      // none | hadamard | top1-pca-offset
    int64_t residual_group = 128;       // channels that share one offset (top1-pca-offset)
    std::string pca = "top1";           // of top1-pca-offset: top1 | all tokens
    std::string grouping = "sorted";    // of both offset transforms: sorted | zigzag
    std::string rotation = "hadamard";  // inside top1-pca-offset's groups: hadamard | random-constant-row
    // none | hadamard-per-head | balanced | balanced-diagonal | balanced-diagonal-hadamard | smooth
    std::string value = "none";
    std::string key = "none";  // none | hadamard-per-head | offset-per-head | balanced
    // Of q, k, v and of gate, up: none | balanced-block | balanced-diagonal | balanced-diagonal-hadamard |
    // smooth
    std::string inputs = "none";
    std::string gate_up = "inputs";  // of gate, up: one of those kinds, or the kind of `inputs`
    int64_t inputs_block = 64;
    std::string output = "none";  // of o_proj's input: none | hadamard
    std::string down = "none";    // those of `inputs` | hadamard | grouped-offset-hadamard
    int64_t down_block = 128;
    double alpha = 0.5;  // smooth: how much of the range moves into the weights; kSearchAlpha: searched
    const std::string& gate_up_kind() const { return gate_up == "inputs" ? inputs : gate_up; }
    /// Whether any site has this kind.
    bool has(std::string_view kind) const {
      return inputs == kind || gate_up_kind() == kind || value == kind || down == kind;
    }
    bool smooths() const { return has("smooth"); }
    /// Whether channels are scaled by the balanced diagonal somewhere.
    bool balances_channels() const { return has("balanced-diagonal") || has("balanced-diagonal-hadamard"); }
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
    std::string score = "residual-norm";  // ... | weight-max | random | hessian-diagonal | delta-hessian
    std::string scope = "matrix";         // where the budget holds: matrix | global
    std::string unit = "block";           // what is chosen: block | channel (every row of `block` columns)
    int64_t block = 128;                  // columns of a block
    bool sort = false;                    // input channels in descending order of their energy first
    bool operator==(const Residual&) const = default;
  } residual;

  struct Activations {
    int bits = 4;            // 4, 8, or 16 for unquantised
    int64_t group = 0;       // 0: the whole token
    int64_t down_group = 0;  // of down_proj's input; 0: as `group`
    bool symmetric = false;
    // none | first3-last | rule | rank:N (both measured, quant/activations/jump_ratio.h) | layer numbers from
    // 0, as "0,1,2,29"
    std::string layers8 = "none";
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

  // Weight scales and norms trained behind everything else (quant/refine/refine.h).
  struct Refine {
    int64_t samples = 0;    // of the calibration text, behind its own, each a step; 0: no refinement
    int64_t length = 1024;  // tokens of a sample that are used
    double rate = 0.0015;   // largest step of a scale, relative
    double norm_rate = 0;   // of a norm's gain; 0: norms stay
    bool operator==(const Refine&) const = default;
  } refine;

  // Residual blocks and 8-bit inputs bought where they help most (quant/planner/plan.h), in place of
  // residual.budget or activations.layers8, and transforms. One of the two limits; both 0: no plan.
  struct Plan {
    double budget_bits = 0;   // mean bits of a weight in the layers' linears, scales and indices included
    double max_slowdown = 0;  // of a decoded token, against the same recipe with 4 bits everywhere
    double inputs8 = 1;       // cost of a product with 8-bit inputs beyond one with 4-bit inputs, as a share
    bool transforms = false;  // of max_slowdown: transform.inputs, gate_up and down are chosen by site
    int64_t samples = 8;      // of the calibration's
    int64_t length = 512;     // tokens of a sample that are used
    bool operator==(const Plan&) const = default;
    bool asked() const { return budget_bits > 0 || max_slowdown > 0; }
  } plan;

  int embedding_bits = 8;  // 4, 8 or 16, one scale a row
  int lm_head_bits = 8;
  bool operator==(const Recipe&) const = default;

  bool transforms() const { return !(transform == Transforms{}); }
  /// Whether weights are chosen from the inputs that the quantised layers before them give.
  bool follows_stream() const {
    return weights.method != "rtn" || (residual.budget > 0 && residual.score == "hessian-diagonal");
  }
  /// Whether blocks are scored by the unquantised inputs of their linears.
  bool scores_inputs() const { return residual.budget > 0 && residual.score == "delta-hessian"; }
  /// Whether the unquantised inputs of every linear are watched: for scaling channels, sorting, or scores
  /// without a quantised stream.
  bool watches_inputs() const {
    return transform.smooths() || transform.balances_channels() || residual.sort || scores_inputs();
  }
  /// Whether activations.layers8 is chosen by what a model's layers do (choose_layers8()).
  bool measures_layers8() const {
    return activations.layers8 == "rule" || activations.layers8.starts_with("rank:");
  }
  /// Whether calibration text is read.
  bool calibrated() const;
  /// The same without its plan.
  Recipe unplanned() const {
    Recipe recipe = *this;
    recipe.plan = {};
    return recipe;
  }
  /// Every field, defaults and overrides included, as parse_recipe reads it back: the artifact's recipe.toml.
  std::string to_toml() const;
  /// Layers whose linears take 8-bit inputs (activations.layers8), ascending, for a model of `layers` layers.
  /// A number past the last layer is an error, and so is a choice that is not measured yet.
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
