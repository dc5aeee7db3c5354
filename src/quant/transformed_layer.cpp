#include "quant/transformed_layer.h"

#include "base/rng.h"
#include "quant/layer_sites.h"
#include "quant/layer_smoothing.h"
#include "quant/policy.h"
#include "quant/reference/device.h"
#include "quant/transforms/balance.h"
#include "quant/transforms/block.h"
#include "quant/transforms/channel_order.h"
#include "quant/transforms/layer_transforms.h"
#include "quant/transforms/rotation.h"
#include "quant/transforms/top1_pca.h"

namespace quatrain {
namespace {

constexpr double kInputDamping = 1e-3, kKeyDamping = 1e-4;  // of the moments before they are balanced

// Which sites' channels turn into mixtures (LayerInputs) that blocks are scored behind.
std::array<bool, 4> mixed_sites(const Recipe& recipe) {
  if (!recipe.scores_inputs()) return {};
  const auto mixes = [](const std::string& kind) {
    return kind != "none" && kind != "smooth" && kind != "balanced-diagonal";
  };
  const Recipe::Transforms& transform = recipe.transform;
  return {mixes(transform.inputs), mixes(transform.value) || mixes(transform.output),
          mixes(transform.gate_up_kind()), mixes(transform.down)};
}

bool is_diagonal(const std::string& kind) {
  return kind == "balanced-diagonal" || kind == "balanced-diagonal-hadamard";
}

// Rows that the search of alpha keeps of each sample.
int64_t kept_rows(const Recipe& recipe, size_t samples) {
  if (recipe.transform.alpha != Recipe::kSearchAlpha || samples == 0) return 0;
  const auto count = static_cast<int64_t>(samples);
  return (kSearchTokens + count - 1) / count;
}

class Transformer {
 public:
  Transformer(TransformedLayer& result, const ModelConfig& config, const Recipe& recipe,
              const QuantizationConfig& plan, ThreadPool& pool)
      : result_(result),
        layer_(result.layer),
        config_(config),
        recipe_(recipe),
        plan_(plan),
        pool_(pool),
        pass_(result.pass),
        inputs_(result.inputs) {}

  void measure(const std::vector<torch::Tensor>& hidden, const SampleWork& work) {
    const auto balanced = [&](const ReferenceLinear& linear) {
      const Transform& transform = policy(linear).input_transform;
      return transform.kind == "block" ? transform.order : 0;
    };
    SiteObserver observe;
    if (recipe_.watches_inputs())
      observe = [this](Site site, const torch::Tensor& input) { inputs_.add(site, input); };
    const DecoderLayer::Mlp& mlp = layer_.mlps[0];
    const int64_t input_block = std::max(balanced(layer_.q), balanced(mlp.gate));  // equal where both are
    pass_ = run_exact(layer_, config_, hidden, input_block, balanced(mlp.down), observe, work);
  }

  void merge() {
    const Recipe::Transforms& transform = recipe_.transform;
    if (transform.smooths())
      result_.smoothing = smooth_layer(layer_, config_, recipe_, plan_, inputs_, pool_);
    if (recipe_.residual.sort) sort_channels();
    merge_value();
    set_keys();
    if (is_diagonal(transform.down)) balance_channels(Site::Down);
    if (is_diagonal(transform.inputs)) balance_channels(Site::Qkv);
    if (is_diagonal(transform.gate_up_kind())) balance_channels(Site::GateUp);
    if (transform.smooths() || transform.balances_channels()) keep_norms();
    merge_inputs(Site::Qkv, pass_.moments.attention, pass_.moments.tokens, "attention");
    merge_inputs(Site::GateUp, pass_.moments.mlp, pass_.moments.tokens, "mlp");
    merge_inputs(Site::Output, {}, 0, "output");
    if (policy(layer_.mlps[0].down).input_transform.kind == "grouped-offset-hadamard") order_inner_channels();
    merge_inputs(Site::Down, pass_.moments.down, pass_.moments.down_tokens, "down");
  }

 private:
  const LinearPolicy& policy(const ReferenceLinear& linear) const { return plan_.linear(linear.name); }
  torch::Device device() const { return layer_.q.weight.device(); }
  uint64_t seed(std::string_view site) const { return transform_seed(recipe_, layer_.index(), site); }

  // One value a channel of the KV heads out of one a channel of o's input: the sum over its query heads.
  torch::Tensor summed_heads(const torch::Tensor& by_query_channel) const {
    return by_query_channel.reshape({config_.kv_heads, -1, config_.head_dim}).sum(1);
  }

  // The balanced diagonal of a site goes where smoothing's scales go.
  void balance_channels(Site site) {
    torch::Tensor moments = inputs_.mean_squares(site);
    torch::Tensor gram = column_squares(site);
    if (site == Site::Output) {
      moments = summed_heads(moments).flatten();
      gram = summed_heads(gram).flatten();
    }
    const torch::Tensor scale = balancing_scale(moments, gram, kInputDamping).to(torch::kFloat);
    require(torch::isfinite(scale).all().item<bool>(), "layer {}: a balanced diagonal is not finite",
            layer_.index());
    smooth(layer_, config_, site, scale);
    inputs_.divide(site, site == Site::Output ? spread_heads(scale, config_) : scale);
    if (site == Site::Down) pass_.moments.down_largest = pass_.moments.down_largest / scale;
  }

  void keep_norms() {
    const std::string prefix = fmt::format("model.layers.{}.", layer_.index());
    result_.rescaled[prefix + "input_layernorm.weight"] = layer_.input_norm;
    if (config_.sandwich_norms)
      result_.rescaled[prefix + "pre_feedforward_layernorm.weight"] = layer_.pre_mlp_norm;
    else
      result_.rescaled[prefix + "post_attention_layernorm.weight"] = layer_.post_attention_norm;
    if (layer_.router.defined()) result_.rescaled[prefix + "mlp.gate.weight"] = layer_.router;
  }

  void sort_channels() {
    const torch::Tensor values = value_order(inputs_.sensitivity(Site::Output), config_);
    permute_values(layer_, config_, values);
    inputs_.permute(Site::Output, values);
    const torch::Tensor inner = energy_order(inputs_.sensitivity(Site::Down));
    permute_inner(layer_.mlps[0], inner);
    inputs_.permute(Site::Down, inner);
  }

  void order_inner_channels() {
    for (size_t expert = 0; expert < layer_.mlps.size(); ++expert) {
      DecoderLayer::Mlp& mlp = layer_.mlps[expert];
      const torch::Tensor order =
          offset_grouping(pass_.moments.down_largest[static_cast<int64_t>(expert)],
                          policy(mlp.down).input_transform.order, recipe_.transform.grouping == "zigzag");
      permute_inner(mlp, order);
      if (recipe_.scores_inputs()) inputs_.permute(Site::Down, order);
    }
  }

  // A transform that the policy stores is made from moments; others are constructed.
  void merge_inputs(Site site, const torch::Tensor& moments, int64_t tokens, std::string_view name) {
    const std::vector<ReferenceLinear*> linears = linears_at(layer_, site);
    const Transform& transform = policy(*linears[0]).input_transform;
    if (transform.kind == "none") return;
    torch::Tensor blocks;
    if (transform.kind == "block") {
      blocks = balance(moments / static_cast<double>(tokens), weight_gram(site, transform.order),
                       kInputDamping, seed(name), &pool_)
                   .to(torch::kBFloat16)  // as it is stored; the inverse is that of the rounded matrix
                   .to(torch::kFloat);
      result_.transforms[transform.tensor] = blocks;
    } else {
      blocks = constructed_blocks(transform, linears[0]->weight.size(1));
    }
    for (ReferenceLinear* linear : linears) merge_input_transform(*linear, transform, blocks);
    if (recipe_.scores_inputs()) inputs_.turn(site, blocks);
  }

  // The diagonal of W^T W over all matrices that read the site, FP64 [in].
  torch::Tensor column_squares(Site site) {
    torch::Tensor sum;
    for (const SiteLinears& one : sites_of(layer_)) {
      if (one.site != site) continue;
      const torch::Tensor part = weights_of(one.linears).square().sum(0, false, torch::kDouble);
      sum = sum.defined() ? sum + part : part;
    }
    return sum;
  }

  // W^T W in blocks, over all matrices that read the site; expert by expert, so that no copy of all is made.
  torch::Tensor weight_gram(Site site, int64_t order) {
    torch::Tensor gram;
    for (const SiteLinears& one : sites_of(layer_)) {
      if (one.site != site) continue;
      const torch::Tensor part = block_moments(weights_of(one.linears).to(torch::kDouble), order);
      gram = gram.defined() ? gram + part : part;
    }
    return gram;
  }

  void merge_value() {
    const std::string& kind = recipe_.transform.value;
    if (kind == "none" || kind == "smooth") return;
    if (is_diagonal(kind)) balance_channels(Site::Output);
    if (kind == "balanced-diagonal") return;
    const int64_t dim = config_.head_dim, shared = config_.heads / config_.kv_heads;
    if (kind == "hadamard-per-head") {
      const torch::Tensor turn = hadamard_rotation(dim, hadamard_order(dim), seed("value"));
      turn_values(turn.expand({config_.kv_heads, dim, dim}).contiguous());
      return;
    }
    if (kind == "balanced-diagonal-hadamard") {
      turn_values(offset_turns(energy_order(summed_heads(inputs_.mean_squares(Site::Output)))));
      return;
    }
    const auto pooled = [&](const torch::Tensor& by_head) {
      return by_head.reshape({config_.kv_heads, shared, dim, dim}).sum(1);
    };
    const torch::Tensor moments =
        pooled(pass_.moments.mixed) / static_cast<double>(pass_.moments.tokens * shared);
    const torch::Tensor gram = pooled(block_moments(layer_.o.weight.to(torch::kDouble), dim));
    turn_values(balance(moments, gram, kInputDamping, seed("value"), &pool_));
  }

  // A Hadamard matrix of each KV head with a constant row for the first channel of its `order`, int64
  // [kv_heads, d]: FP64 [kv_heads, d, d].
  torch::Tensor offset_turns(const torch::Tensor& order) const {
    const int64_t dim = config_.head_dim;
    const torch::Tensor turns = torch::empty({config_.kv_heads, dim, dim}, torch::kDouble);
    for (int64_t head = 0; head < config_.kv_heads; ++head)
      turns[head].index_copy_(
          0, order[head].cpu(),
          offset_rotation(dim, SplitMix64(seed("value") + static_cast<uint64_t>(head)).next()));
    return turns;
  }

  void turn_values(const torch::Tensor& by_head) {
    merge_value_transform(layer_, by_head);
    if (recipe_.scores_inputs())
      inputs_.turn(Site::Output, by_head.repeat_interleave(config_.heads / config_.kv_heads, 0));
  }

  void set_keys() {
    const Transform& transform = plan_.kv_of(static_cast<int>(layer_.index())).key_transform;
    if (transform.kind != "matrix") {
      layer_.key_transform = on_device(constructed_key_transform(transform, config_), device());
      return;
    }
    if (recipe_.transform.key == "offset-per-head")
      store_keys(transform, offset_keys(),
                 torch::zeros({config_.kv_heads, config_.head_dim}, torch::kDouble));
    else
      balance_keys(transform);
  }

  // OffQ's U_3 P_3 H_3 of each KV head, FP64 [kv_heads, d, d].
  torch::Tensor offset_keys() const {
    const int64_t group = plan_.kv_of(static_cast<int>(layer_.index())).group;
    std::vector<torch::Tensor> by_head;
    for (int64_t head = 0; head < config_.kv_heads; ++head)
      by_head.push_back(top1_pca_rotation(pass_.moments.largest_keys.select(1, head).cpu(),
                                          group == 0 ? config_.head_dim : group,
                                          SplitMix64(seed("key") + static_cast<uint64_t>(head)).next()));
    return torch::stack(by_head);
  }

  void balance_keys(const Transform& transform) {
    const auto tokens = static_cast<double>(pass_.moments.tokens);
    const int64_t shared = config_.heads / config_.kv_heads;
    const torch::Tensor mean = pass_.moments.key_sum / tokens;
    const torch::Tensor covariance =
        pass_.moments.keys / tokens - mean.unsqueeze(2).matmul(mean.unsqueeze(1));
    const torch::Tensor queries = pass_.moments.queries / (tokens * static_cast<double>(shared));
    store_keys(transform, balance(covariance, queries, kKeyDamping, seed("key"), &pool_), mean);
  }

  // k <- (k - mean) A, q <- q A^-T: a FP64 [kv_heads, d, d], mean [kv_heads, d].
  void store_keys(const Transform& transform, const torch::Tensor& a, const torch::Tensor& mean) {
    const torch::Tensor forward = a.cpu(), shift = mean.cpu();
    const torch::Tensor stored =
        torch::cat({forward, torch::linalg_inv(forward).transpose(1, 2), shift.unsqueeze(1)}, 1)
            .to(torch::kFloat);
    const int64_t dim = config_.head_dim;
    layer_.key_transform =
        on_device({stored.slice(1, 0, dim).contiguous(), stored.slice(1, dim, 2 * dim).contiguous(),
                   stored.select(1, 2 * dim).contiguous()},
                  device());
    result_.transforms[transform.tensor] = stored;
  }

  TransformedLayer& result_;
  DecoderLayer& layer_;
  const ModelConfig& config_;
  const Recipe& recipe_;
  const QuantizationConfig& plan_;
  ThreadPool& pool_;
  ExactPass& pass_;
  LayerInputs& inputs_;
};

}  // namespace

TransformedLayer transform_layer(DecoderLayer layer, const ModelConfig& config, const Recipe& recipe,
                                 const QuantizationConfig& plan, const std::vector<torch::Tensor>& hidden,
                                 const SampleWork& work, ThreadPool& pool) {
  const int64_t index = layer.index();
  TransformedLayer result{std::move(layer),
                          {},
                          LayerInputs(mixed_sites(recipe), kept_rows(recipe, hidden.size()),
                                      transform_seed(recipe, index, "search")),
                          {},
                          {}};
  Transformer transformer(result, config, recipe, plan, pool);
  if (!hidden.empty()) transformer.measure(hidden, work);
  transformer.merge();
  return result;
}

std::map<std::string, ScoredMatrix> score_blocks(TransformedLayer& transformed, const Recipe& recipe,
                                                 const QuantizationConfig& plan, ThreadPool& pool) {
  std::map<std::string, ScoredMatrix> all;
  for (const SiteLinears& site : sites_of(transformed.layer)) {
    const torch::Tensor sensitivity = transformed.inputs.sensitivity(site.site);
    for (const ReferenceLinear* linear : site.linears) {
      const LinearPolicy& policy = plan.linear(linear->name);
      all[linear->name] = {
          block_scores(recipe.residual.score, linear->weight, nearest_steps(*linear, recipe, policy, pool),
                       sensitivity, policy.residual_block),
          (linear->weight.to(torch::kDouble).square() * sensitivity).sum().item<double>()};
    }
  }
  return all;
}

torch::Tensor nearest_steps(const ReferenceLinear& linear, const Recipe& recipe, const LinearPolicy& policy,
                            ThreadPool& pool) {
  WeightFormat format = weight_format(recipe, policy, linear.name);
  format.residual_budget = 0;
  const NibblePlanes planes = round_to_nearest(linear.name, linear.weight, format, pool);
  const torch::Tensor scales =
      torch::tensor(planes.scale).reshape({planes.rows, planes.groups()}).to(linear.weight.device());
  const int64_t group = format.group == 0 ? planes.columns : format.group;
  return scales.repeat_interleave(group, 1).slice(1, 0, planes.columns);
}

NibblePlanes round_to_nearest(const std::string& name, const torch::Tensor& weight,
                              const WeightFormat& format, ThreadPool& pool) {
  const int64_t columns = weight.size(1);
  const torch::Tensor rows = in_memory(weight);
  const RowReader read = [&](int64_t begin, int64_t end) {
    const float* data = rows.data_ptr<float>();
    return std::vector<float>(data + begin * columns, data + end * columns);
  };
  return quantize_rtn(name, weight.size(0), columns, read, format, pool).planes;
}

}  // namespace quatrain
