#include "quant/policy.h"

#include <algorithm>
#include <charconv>
#include <set>

namespace quatrain {
namespace {

constexpr int64_t kHeadGroup = 128;     // of the head's 8-bit input
constexpr int64_t kSmallestGroup = 16;  // a scale for fewer columns costs more than it gives

class Planner {
 public:
  Planner(const ModelConfig& model, const Recipe& recipe) : model_(model), recipe_(recipe) {}

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
      for (const LinearShape& linear : linears_of_layer(model_, layer)) add_linear(linear, wide);
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
    if (noted_.insert(note).second) plan_.notes.push_back(note);
    return fitted;
  }

  void add_linear(const LinearShape& linear, bool wide) {
    LinearPolicy policy = plan_.config.defaults;
    policy.weight_group = fit(linear.in, policy.weight_group, "weight");
    if (policy.activation.bits != 16)
      policy.activation.group = fit(linear.in, policy.activation.group, "activation");
    if (wide) policy.activation.bits = 8;
    const LinearPolicy& defaults = plan_.config.defaults;
    if (policy.weight_group != defaults.weight_group || !(policy.activation == defaults.activation))
      plan_.config.linears[linear.name] = policy;
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
  }

  const ModelConfig& model_;
  const Recipe& recipe_;
  QuantizationPlan plan_;
  std::set<std::string> noted_;
};

}  // namespace

QuantizationPlan plan_quantization(const ModelConfig& model, const Recipe& recipe) {
  return Planner(model, recipe).run();
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
  return format;
}

}  // namespace quatrain
