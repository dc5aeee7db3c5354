#include "quant/policy.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "base/error.h"
#include "base/hadamard_matrix.h"
#include "base/rng.h"

namespace quatrain {
namespace {

constexpr int64_t kHeadGroup = 128;     // of the head's 8-bit input
constexpr int64_t kSmallestGroup = 16;  // a scale for fewer columns costs more than it gives

class Planner {
 public:
  Planner(const ModelConfig& model, const Recipe& recipe, std::span<const Recipe::Transforms> by_layer)
      : model_(model), recipe_(recipe), by_layer_(by_layer) {}

  QuantizationPlan run() {
    QuantizationConfig& config = plan_.config;
    config.recipe = recipe_.name;
    config.defaults.weight_group = recipe_.weights.group;
    config.defaults.residual_block = recipe_.residual.block;
    config.defaults.activation = {recipe_.activations.bits, recipe_.activations.group,
                                  recipe_.activations.symmetric};
    const std::vector<int64_t> layers8 = recipe_.layers_with_8_bits(model_.layers);
    for (int64_t layer = 0; layer < model_.layers; ++layer) {
      const bool wide = std::binary_search(layers8.begin(), layers8.end(), layer);
      for (const LinearShape& linear : linears_of_layer(model_, layer)) add_linear(linear, layer, wide);
    }
    add_head();
    add_kv();
    return std::move(plan_);
  }

 private:
  int64_t fit(int64_t width, int64_t group, const char* what) {
    int64_t fitted = fitting_group(width, group);
    if (fitted == group) return group;
    if (fitted < kSmallestGroup) fitted = 0;
    const std::string note =
        fitted == 0 ? fmt::format("width {}: {} groups of {} do not divide it, the whole row is one group",
                                  width, what, group)
                    : fmt::format("width {}: {} groups of {} do not divide it, {} are used", width, what,
                                  group, fitted);
    this->note(note);
    return fitted;
  }

  void note(const std::string& text) {
    if (noted_.insert(text).second) plan_.notes.push_back(text);
  }

  void add_linear(const LinearShape& linear, int64_t layer, bool wide) {
    LinearPolicy policy = plan_.config.defaults;
    policy.input_transform = input_transform(linear, layer);
    if (recipe_.activations.down_group != 0 && linear.name.ends_with("down_proj"))
      policy.activation.group = recipe_.activations.down_group;
    policy.weight_group = fit(linear.in, policy.weight_group, "weight");
    if (policy.activation.bits != 16)
      policy.activation.group = fit(linear.in, policy.activation.group, "activation");
    if (wide) policy.activation.bits = 8;
    const LinearPolicy& defaults = plan_.config.defaults;
    if (policy.weight_group != defaults.weight_group || !(policy.activation == defaults.activation) ||
        !(policy.input_transform == defaults.input_transform))
      plan_.config.linears[linear.name] = policy;
  }

  // Full where a Hadamard matrix of the width exists, else in the largest blocks of a power of two.
  Transform hadamard(int64_t width, int64_t layer, std::string_view site) {
    const int64_t order = hadamard_exists(width) ? width : width & -width;
    if (order != width)
      note(fmt::format("width {}: no Hadamard matrix of this order is known, blocks of {} are used", width,
                       order));
    return {order == width ? "hadamard" : "grouped-hadamard", order, transform_seed(recipe_, layer, site),
            ""};
  }

  Transform input_transform(const LinearShape& linear, int64_t layer) {
    const Recipe::Transforms& kinds =
        by_layer_.empty() ? recipe_.transform : by_layer_[static_cast<size_t>(layer)];
    const auto stored = [&](int64_t block, const char* field, const char* name) -> Transform {
      const int64_t order = fit(linear.in, block, "balanced");
      require(order > 0,
              "{}: no block of {} columns or more divides its {} inputs; set {} to another transform",
              linear.name, kSmallestGroup, linear.in, field);
      return {"block", order, 0, fmt::format("model.layers.{}.{}", layer, name)};
    };
    if (linear.name.ends_with("o_proj"))
      return kinds.output == "none" ? Transform{} : hadamard(linear.in, layer, "output");
    if (!linear.name.ends_with("down_proj")) {
      const bool attention = linear.name.find(".self_attn.") != std::string::npos;
      const std::string& kind = attention ? kinds.inputs : kinds.gate_up_kind();
      if (kind == "balanced-block")
        return stored(kinds.inputs_block, attention ? "transform.inputs" : "transform.gate_up",
                      attention ? "self_attn.input_transform" : "mlp.input_transform");
      if (kind == "balanced-diagonal-hadamard")
        return hadamard(linear.in, layer, attention ? "attention" : "mlp");
      return {};
    }
    if (kinds.down == "balanced-block")
      return stored(kinds.down_block, "transform.down", "mlp.down_transform");
    // Behind the balanced diagonal the offset form serves quantisers that have a zero point.
    const bool turned = kinds.down == "balanced-diagonal-hadamard";
    const bool divides = has_blocks(linear.in, kinds.down_block);
    if (kinds.down == "grouped-offset-hadamard" || (turned && divides && !recipe_.activations.symmetric)) {
      require(
          divides,
          "{}: no group of {} columns or more divides its {} inputs; set transform.down to \"hadamard\" or "
          "\"none\"",
          linear.name, kSmallestGroup, linear.in);
      return {"grouped-offset-hadamard", fit(linear.in, kinds.down_block, "offset"),
              transform_seed(recipe_, layer, "down"), ""};
    }
    if (kinds.down == "hadamard" || turned) return hadamard(linear.in, layer, "down");
    return {};
  }

  void add_head() {
    QuantizationConfig& config = plan_.config;
    config.embedding_bits = recipe_.embedding_bits;
    config.lm_head_bits = recipe_.lm_head_bits;
    config.lm_head_tied = model_.tied_embeddings && config.embedding_bits == config.lm_head_bits;
    LinearPolicy policy = config.defaults;
    policy.weight_group = 0;
    policy.activation = {};
    if (config.lm_head_bits != 16)
      policy.activation = {8, fit(model_.hidden, kHeadGroup, "lm_head input"), false};
    config.linears[kHeadName] = policy;
  }

  void add_kv() {
    KvPolicy& kv = plan_.config.kv;
    kv.bits = recipe_.kv.bits;
    if (kv.bits == 16) return;
    kv.symmetric = recipe_.kv.symmetric;
    kv.sink_tokens = recipe_.kv.sink_tokens;
    int64_t group = 0;
    if (const std::string& text = recipe_.kv.group; text != "head")
      std::from_chars(text.data(), text.data() + text.size(), group);
    kv.group = group >= model_.head_dim ? 0 : fit(model_.head_dim, group, "KV");
    std::string kind = recipe_.transform.key;
    if (kind == "none") return;
    if (kind == "offset-per-head" && !model_.qkv_bias) {
      note(fmt::format("keys of {} have no bias to absorb: a Hadamard of each head is used",
                       model_.architecture));
      kind = "hadamard-per-head";
    }
    if (kind == "hadamard-per-head") {
      require(hadamard_exists(model_.head_dim),
              "transform.key: no Hadamard matrix of the head width {} is known; use \"balanced\" or \"none\"",
              model_.head_dim);
      kv.key_transform = {"hadamard", model_.head_dim, transform_seed(recipe_, 0, "key"), ""};
      return;
    }
    for (int64_t layer = 0; layer < model_.layers; ++layer) {
      KvPolicy own = kv;
      own.key_transform = {"matrix", model_.head_dim, 0,
                           fmt::format("model.layers.{}.self_attn.key_transform", layer)};
      plan_.config.kv_layers[static_cast<int>(layer)] = own;
    }
  }

  const ModelConfig& model_;
  const Recipe& recipe_;
  std::span<const Recipe::Transforms> by_layer_;
  QuantizationPlan plan_;
  std::set<std::string> noted_;
};

}  // namespace

bool has_blocks(int64_t width, int64_t block) {
  return fitting_group(width, block) >= kSmallestGroup;
}

std::string_view half_type(std::string_view dtype) {
  return dtype == "bfloat16" ? "BF16" : "F16";
}

uint64_t transform_seed(const Recipe& recipe, int64_t layer, std::string_view site) {
  uint64_t seed = SplitMix64(static_cast<uint64_t>(recipe.seed) ^ static_cast<uint64_t>(layer) << 32).next();
  for (const char letter : site) seed = SplitMix64(seed ^ static_cast<uint8_t>(letter)).next();
  return seed;
}

QuantizationPlan plan_quantization(const ModelConfig& model, const Recipe& recipe,
                                   std::span<const Recipe::Transforms> by_layer) {
  return Planner(model, recipe, by_layer).run();
}

WeightFormat weight_format(const Recipe& recipe, const LinearPolicy& policy, const std::string& linear) {
  WeightFormat format;
  format.residual_block = policy.residual_block;
  format.seed = static_cast<uint64_t>(recipe.seed);
  if (linear == kEmbeddingName || linear == kHeadName) {
    format.bits = linear == kHeadName ? recipe.lm_head_bits : recipe.embedding_bits;
    return format;
  }
  format.bits = recipe.weights.bits;
  format.group = policy.weight_group;
  format.clip = recipe.weights.clip == "mse";
  format.residual_budget = recipe.residual.budget;
  format.residual_score = recipe.residual.score;
  format.residual_unit = recipe.residual.unit;
  return format;
}

}  // namespace quatrain
