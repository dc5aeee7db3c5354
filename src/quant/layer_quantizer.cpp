#include "quant/layer_quantizer.h"

#include <chrono>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "quant/input_statistics.h"
#include "quant/layer_moments.h"
#include "quant/layer_smoothing.h"
#include "quant/policy.h"
#include "quant/transforms/balance.h"
#include "quant/transforms/block.h"
#include "quant/transforms/channel_order.h"
#include "quant/transforms/layer_transforms.h"
#include "quant/transforms/rotation.h"
#include "quant/transforms/top1_pca.h"
#include "quant/weights/gptq.h"
#include "quant/weights/planes.h"
#include "quant/weights/target.h"

namespace quatrain {
namespace {

constexpr double kInputDamping = 1e-3, kKeyDamping = 1e-4;  // of the moments before they are balanced

torch::Tensor weights_of(const std::vector<ReferenceLinear*>& linears) {
  std::vector<torch::Tensor> weights;
  for (const ReferenceLinear* linear : linears) weights.push_back(linear->weight);
  return torch::cat(weights);
}

torch::Tensor dequantized(const NibblePlanes& planes) {
  torch::Tensor weight = torch::empty({planes.rows, planes.columns}, torch::kFloat);
  for (int64_t row = 0; row < planes.rows; ++row)
    planes.dequantize_row(row, weight.data_ptr<float>() + row * planes.columns);
  return weight;
}

class LayerQuantizer {
 public:
  LayerQuantizer(DecoderLayer layer, const ModelConfig& config, const Recipe& recipe,
                 const QuantizationConfig& plan, CalibrationStreams& streams, ThreadPool& pool,
                 const BlockChoice& chosen)
      : layer_(std::move(layer)),
        config_(config),
        recipe_(recipe),
        plan_(plan),
        streams_(streams),
        pool_(pool),
        chosen_(chosen),
        mlp_(layer_.mlps[0]),
        qkv_{&layer_.q, &layer_.k, &layer_.v},
        gate_up_{&mlp_.gate, &mlp_.up},
        inputs_(mixed_sites(recipe.transform),
                recipe.transform.alpha == Recipe::kSearchAlpha && !streams.exact.empty()
                    ? (kSearchTokens + std::ssize(streams.exact) - 1) / std::ssize(streams.exact)
                    : 0,
                transform_seed(recipe, layer_.index(), "search")) {}

  std::map<std::string, ScoredMatrix> scores() {
    run_unquantised();
    merge_transforms();
    std::map<std::string, ScoredMatrix> all;
    for (const std::vector<ReferenceLinear*>& group :
         {qkv_, {&layer_.o}, gate_up_, std::vector<ReferenceLinear*>{&mlp_.down}})
      for (const ReferenceLinear* linear : group) all[linear->name] = scored(*linear);
    streams_.exact = std::move(pass_.output);
    return all;
  }

  QuantizedLayer run() {
    run_unquantised();
    merge_transforms();
    set_policies();
    if (recipe_.follows_stream())
      follow_stream();
    else
      for (const std::vector<ReferenceLinear*>& group :
           {qkv_, {&layer_.o}, gate_up_, std::vector<ReferenceLinear*>{&mlp_.down}})
        quantize(group, {});
    streams_.exact = std::move(pass_.output);
    return std::move(result_);
  }

 private:
  void run_unquantised() {
    if (!streams_.exact.empty()) {
      const auto balanced = [&](const ReferenceLinear& linear) {
        const Transform& transform = policy(linear).input_transform;
        return transform.kind == "block" ? transform.order : 0;
      };
      SiteObserver observe;
      if (recipe_.watches_inputs())
        observe = [this](Site site, const torch::Tensor& input) { inputs_.add(site, input); };
      pass_ = run_exact(layer_, config_, streams_.exact, balanced(layer_.q), balanced(mlp_.down), observe,
                        streams_.work);
    }
  }

  ScoredMatrix scored(const ReferenceLinear& linear) {
    WeightFormat format = weight_format(recipe_, policy(linear), linear.name);
    format.residual_budget = 0;
    const NibblePlanes planes = nearest(linear.name, linear.weight, format);
    const torch::Tensor scales = torch::tensor(planes.scale).reshape({planes.rows, planes.groups()});
    const int64_t group = format.group == 0 ? planes.columns : format.group;
    const torch::Tensor steps = scales.repeat_interleave(group, 1).slice(1, 0, planes.columns);
    const torch::Tensor sensitivity = inputs_.sensitivity(site_of(linear));
    return {block_scores(recipe_.residual.score, linear.weight, steps, sensitivity, format.residual_block),
            (linear.weight.to(torch::kDouble).square() * sensitivity).sum().item<double>()};
  }

  const LinearPolicy& policy(const ReferenceLinear& linear) const { return plan_.linear(linear.name); }
  uint64_t seed(std::string_view site) const { return transform_seed(recipe_, layer_.index(), site); }

  // Which sites' channels turn into mixtures (LayerInputs).
  static std::array<bool, 4> mixed_sites(const Recipe::Transforms& transform) {
    const auto mixes = [](const std::string& kind) { return kind != "none" && kind != "smooth"; };
    const bool inputs = mixes(transform.inputs);
    return {inputs, mixes(transform.value) || mixes(transform.output), inputs, mixes(transform.down)};
  }

  void merge_transforms() {
    if (recipe_.transform.smooths()) smooth_sites();
    if (recipe_.residual.sort) sort_channels();
    merge_value();
    set_keys();
    merge_inputs(qkv_, pass_.moments.attention, "attention");
    merge_inputs(gate_up_, pass_.moments.mlp, "mlp");
    merge_inputs({&layer_.o}, {}, "output");
    if (recipe_.transform.down == "grouped-offset-hadamard") {
      const torch::Tensor order =
          offset_grouping(pass_.moments.down_largest, policy(mlp_.down).input_transform.order,
                          recipe_.transform.grouping == "zigzag");
      permute_inner(mlp_, order);
      if (recipe_.watches_inputs()) inputs_.permute(Site::Down, order);
    }
    merge_inputs({&mlp_.down}, pass_.moments.down, "down");
  }

  void smooth_sites() {
    result_.smoothing = smooth_layer(layer_, config_, recipe_, plan_, inputs_, pool_);
    const std::string prefix = fmt::format("model.layers.{}.", layer_.index());
    result_.norms[prefix + "input_layernorm.weight"] = layer_.input_norm;
    if (config_.sandwich_norms)
      result_.norms[prefix + "pre_feedforward_layernorm.weight"] = layer_.pre_mlp_norm;
    else
      result_.norms[prefix + "post_attention_layernorm.weight"] = layer_.post_attention_norm;
  }

  void sort_channels() {
    const torch::Tensor values = value_order(inputs_.sensitivity(Site::Output), config_);
    permute_values(layer_, config_, values);
    inputs_.permute(Site::Output, values);
    const torch::Tensor inner = energy_order(inputs_.sensitivity(Site::Down));
    permute_inner(mlp_, inner);
    inputs_.permute(Site::Down, inner);
  }

  // A transform that the policy stores is made from moments; others are constructed.
  void merge_inputs(const std::vector<ReferenceLinear*>& linears, const torch::Tensor& moments,
                    std::string_view site) {
    const Transform& transform = policy(*linears[0]).input_transform;
    if (transform.kind == "none") return;
    torch::Tensor blocks;
    if (transform.kind == "block") {
      const torch::Tensor gram = block_moments(weights_of(linears).to(torch::kDouble), transform.order);
      blocks = balance(moments / static_cast<double>(pass_.moments.tokens), gram, kInputDamping, seed(site))
                   .to(torch::kBFloat16)  // as it is stored; the inverse is that of the rounded matrix
                   .to(torch::kFloat);
      result_.transforms[transform.tensor] = blocks;
    } else {
      blocks = constructed_blocks(transform, linears[0]->weight.size(1));
    }
    for (ReferenceLinear* linear : linears) merge_input_transform(*linear, transform, blocks);
    if (recipe_.watches_inputs()) inputs_.turn(site_of(*linears[0]), blocks);
  }

  Site site_of(const ReferenceLinear& linear) const {
    if (&linear == &layer_.o) return Site::Output;
    if (&linear == &mlp_.down) return Site::Down;
    return &linear == &mlp_.gate || &linear == &mlp_.up ? Site::GateUp : Site::Qkv;
  }

  void merge_value() {
    const std::string& kind = recipe_.transform.value;
    if (kind == "none" || kind == "smooth") return;
    const int64_t dim = config_.head_dim, shared = config_.heads / config_.kv_heads;
    if (kind == "hadamard-per-head") {
      const torch::Tensor turn = hadamard_rotation(dim, hadamard_order(dim), seed("value"));
      turn_values(turn.expand({config_.kv_heads, dim, dim}).contiguous());
      return;
    }
    const auto pooled = [&](const torch::Tensor& by_head) {
      return by_head.reshape({config_.kv_heads, shared, dim, dim}).sum(1);
    };
    const torch::Tensor moments =
        pooled(pass_.moments.mixed) / static_cast<double>(pass_.moments.tokens * shared);
    const torch::Tensor gram = pooled(block_moments(layer_.o.weight.to(torch::kDouble), dim));
    turn_values(balance(moments, gram, kInputDamping, seed("value")));
  }

  void turn_values(const torch::Tensor& by_head) {
    merge_value_transform(layer_, by_head);
    if (recipe_.watches_inputs())
      inputs_.turn(Site::Output, by_head.repeat_interleave(config_.heads / config_.kv_heads, 0));
  }

  void set_keys() {
    const Transform& transform = plan_.kv_of(static_cast<int>(layer_.index())).key_transform;
    if (transform.kind != "matrix") {
      layer_.key_transform = constructed_key_transform(transform, config_);
      return;
    }
    const auto tokens = static_cast<double>(pass_.moments.tokens);
    const int64_t shared = config_.heads / config_.kv_heads;
    const torch::Tensor mean = pass_.moments.key_sum / tokens;
    const torch::Tensor covariance =
        pass_.moments.keys / tokens - mean.unsqueeze(2).matmul(mean.unsqueeze(1));
    const torch::Tensor queries = pass_.moments.queries / (tokens * static_cast<double>(shared));
    const torch::Tensor a = balance(covariance, queries, kKeyDamping, seed("key"));
    const torch::Tensor stored =
        torch::cat({a, torch::linalg_inv(a).transpose(1, 2), mean.unsqueeze(1)}, 1).to(torch::kFloat);
    const int64_t dim = config_.head_dim;
    layer_.key_transform = {stored.slice(1, 0, dim).contiguous(), stored.slice(1, dim, 2 * dim).contiguous(),
                            stored.select(1, 2 * dim).contiguous()};
    result_.transforms[transform.tensor] = stored;
  }

  // The stream is quantised as the artifact will be, but for methods that look at unquantised inputs.
  void set_policies() {
    if (recipe_.weights.method != "error-aware") return;
    for (ReferenceLinear* linear :
         {&layer_.q, &layer_.k, &layer_.v, &layer_.o, &mlp_.gate, &mlp_.up, &mlp_.down})
      linear->activation = policy(*linear).activation;
    layer_.kv = plan_.kv_of(static_cast<int>(layer_.index()));
  }

  void follow_stream() {
    std::vector<torch::Tensor>& hidden = streams_.quantized;
    quantize_inputs(
        qkv_, [&](size_t s) { return layer_.attention_input(hidden[s]); },
        [&](size_t s) { return layer_.attention_input(streams_.exact[s]); });
    quantize_outputs(
        layer_.o,
        [&](size_t s) {
          const torch::Tensor input = layer_.q.quantize_input(layer_.attention_input(hidden[s]));
          return layer_.mix(layer_.q.product(input), layer_.k.product(input), layer_.v.product(input));
        },
        streams_.exact, pass_.middle, pass_.attention_out,
        [&](const torch::Tensor& out) { return layer_.attention_update(out); });
    quantize_inputs(
        gate_up_, [&](size_t s) { return layer_.mlp_input(hidden[s]); },
        [&](size_t s) { return layer_.mlp_input(pass_.middle[s]); });
    quantize_outputs(
        mlp_.down,
        [&](size_t s) {
          const torch::Tensor input = mlp_.gate.quantize_input(layer_.mlp_input(hidden[s]));
          return layer_.gated(mlp_.gate.product(input), mlp_.up.product(input));
        },
        pass_.middle, pass_.output, pass_.mlp_out,
        [&](const torch::Tensor& out) { return layer_.mlp_update(out); });
    double error = 0, power = 0;
    streams_.work.each(hidden.size(), [&](size_t s, const InOrder& in_order) {
      const auto distance = (hidden[s] - pass_.output[s]).square().sum(torch::kDouble).item<double>();
      const auto norm = pass_.output[s].square().sum(torch::kDouble).item<double>();
      in_order([&] {
        error += distance;
        power += norm;
      });
      SampleWork::rest(hidden[s]);
      SampleWork::rest(pass_.output[s]);
    });
    result_.stream_error = power > 0 ? std::sqrt(error / power) : 0;
  }

  // Linears that read the residual stream: input(s) of the quantised stream, exact(s) of the other.
  template <typename Input, typename Exact>
  void quantize_inputs(const std::vector<ReferenceLinear*>& linears, Input input, Exact exact) {
    const double target = recipe_.weights.target;
    InputStatistics statistics;
    streams_.work.each(streams_.quantized.size(), [&](size_t s, const InOrder& in_order) {
      const torch::Tensor x = linears[0]->quantize_input(input(s));
      const torch::Tensor gram = upper_gram(x);
      torch::Tensor cross;
      if (target > 0) cross = apply_blocks(exact(s), linears[0]->input_blocks).t().matmul(x);
      in_order([&] {
        statistics.add(gram, x.size(0));
        if (target > 0) statistics.add_cross(cross);
      });
      rest(s);
    });
    torch::Tensor pull;
    if (target > 0) pull = target * weights_of(linears).to(torch::kDouble).matmul(statistics.cross());
    quantize(linears, statistics.hessian(), pull, 1 - target);
  }

  // A linear that adds to the residual stream, which the unquantised one takes from before[s] to after[s]:
  // its outputs aim weights.target of the way at the unquantised ones (the update itself, or products[s]
  // where a norm stands behind the linear), and at weights.stream of what the quantised stream lacks before
  // it. Moves the quantised stream behind the linear; update(out) is what its product adds.
  template <typename Input, typename Update>
  void quantize_outputs(ReferenceLinear& linear, Input input, const std::vector<torch::Tensor>& before,
                        const std::vector<torch::Tensor>& after, const std::vector<torch::Tensor>& products,
                        Update update) {
    const double target = recipe_.weights.target, stream = recipe_.weights.stream;
    InputStatistics statistics;
    const bool corrected = target > 0 || stream > 0;
    const std::vector<torch::Tensor> inputs = streams_.work.rows(streams_.quantized, linear.weight.size(1));
    streams_.work.each(inputs.size(), [&](size_t s, const InOrder& in_order) {
      const torch::Tensor x = linear.quantize_input(input(s));
      inputs[s].copy_(x);
      const torch::Tensor gram = upper_gram(x);
      torch::Tensor cross;
      if (corrected) {
        torch::Tensor aim = products.empty() ? after[s] - before[s] : products[s];
        if (linear.bias.defined()) aim = aim - linear.bias;
        aim = target * aim;
        if (stream > 0) aim += stream * (before[s] - streams_.quantized[s]);
        cross = aim.t().matmul(x);
      }
      in_order([&] {
        statistics.add(gram, x.size(0));
        if (corrected) statistics.add_cross(cross);
      });
      SampleWork::rest(inputs[s]);
      rest(s);
    });
    quantize({&linear}, statistics.hessian(), corrected ? statistics.cross() : torch::Tensor(), 1 - target);
    streams_.work.each(inputs.size(), [&](size_t s, const InOrder&) {
      streams_.quantized[s] += update(linear.product(inputs[s]));
      SampleWork::rest(inputs[s]);
      rest(s);
    });
  }

  // Nothing of sample s is needed before the next pass over the samples.
  void rest(size_t s) const {
    for (const auto& rows :
         {std::cref(streams_.exact), std::cref(streams_.quantized), std::cref(pass_.middle),
          std::cref(pass_.output), std::cref(pass_.attention_out), std::cref(pass_.mlp_out)})
      if (s < rows.get().size()) SampleWork::rest(rows.get()[s]);
  }

  // Linears that share an input as one matrix, where their rows fill whole residual blocks.
  void quantize(const std::vector<ReferenceLinear*>& linears, const torch::Tensor& hessian,
                const torch::Tensor& pull = {}, double rest = 1) {
    const bool whole = std::all_of(linears.begin(), linears.end(), [](const ReferenceLinear* linear) {
      return linear->weight.size(0) % kResidualRows == 0;
    });
    if (linears.size() > 1 && !whole) {
      int64_t row = 0;
      for (ReferenceLinear* linear : linears) {
        const int64_t end = row + linear->weight.size(0);
        quantize({linear}, hessian, pull.defined() ? pull.slice(0, row, end) : pull, rest);
        row = end;
      }
      return;
    }
    const auto start = std::chrono::steady_clock::now();
    const torch::Tensor weight = weights_of(linears);
    const torch::Tensor target = pull.defined() ? corrected_target(weight, hessian, pull, rest) : weight;
    Json report = Json::object();
    const NibblePlanes planes =
        rounded(*linears[0], target.contiguous(), hessian, chosen_of(linears), report);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    int64_t row = 0;
    for (ReferenceLinear* linear : linears) {
      const int64_t end = row + linear->weight.size(0);
      NibblePlanes part = linears.size() == 1 ? planes : slice_rows(planes, row, end);
      if (linear->bias.defined()) {
        const torch::Tensor bias = linear->bias.contiguous();
        part.bias.assign(bias.data_ptr<float>(), bias.data_ptr<float>() + bias.numel());
      }
      const torch::Tensor quantized = dequantized(part);
      Json entry = report;
      entry.update(
          {{"name", linear->name},
           {"rows", part.rows},
           {"columns", part.columns},
           {"weight_group", part.weight_group},
           {"residual_blocks", part.residual_index.size()},
           {"relative_error", ((quantized - linear->weight).norm() / linear->weight.norm()).item<double>()},
           {"seconds", seconds * static_cast<double>(part.rows) / static_cast<double>(planes.rows)}});
      linear->weight = quantized;
      result_.linears.push_back({linear->name, std::move(part), std::move(entry)});
      row = end;
    }
  }

  // The blocks of linears that are one matrix, where they were chosen before.
  std::optional<std::vector<int32_t>> chosen_of(const std::vector<ReferenceLinear*>& linears) const {
    if (!chosen_.contains(linears[0]->name)) return {};
    std::vector<int32_t> blocks;
    int64_t first = 0;
    for (const ReferenceLinear* linear : linears) {
      for (const int32_t block : chosen_.at(linear->name))
        blocks.push_back(static_cast<int32_t>(first) + block);
      const int64_t width = policy(*linear).residual_block;
      first += (linear->weight.size(0) + kResidualRows - 1) / kResidualRows *
               ((linear->weight.size(1) + width - 1) / width);
    }
    return blocks;
  }

  NibblePlanes rounded(const ReferenceLinear& first, const torch::Tensor& weight,
                       const torch::Tensor& hessian, std::optional<std::vector<int32_t>> chosen,
                       Json& report) {
    WeightFormat format = weight_format(recipe_, policy(first), first.name);
    format.selected = std::move(chosen);
    if (recipe_.weights.method != "rtn") {
      GptqOptions options;
      options.damping = recipe_.weights.damping;
      options.static_groups = true;
      options.pool = &pool_;
      GptqResult result = quantize_gptq(first.name, weight, hessian, format, {}, options);
      report["damping"] = result.damping;
      if (result.fallback) report["fallback"] = "round to nearest: the Hessian is not positive definite";
      return std::move(result.planes);
    }
    torch::Tensor sensitivity;
    if (hessian.defined())
      sensitivity = hessian.diagonal();
    else if (recipe_.watches_inputs())
      sensitivity = inputs_.sensitivity(site_of(first));
    if (sensitivity.defined()) {
      const torch::Tensor diagonal = sensitivity.to(torch::kFloat).contiguous();
      format.column_weight.assign(diagonal.data_ptr<float>(), diagonal.data_ptr<float>() + diagonal.numel());
    }
    return nearest(first.name, weight, format);
  }

  NibblePlanes nearest(const std::string& name, const torch::Tensor& weight, const WeightFormat& format) {
    const int64_t columns = weight.size(1);
    const RowReader read = [&](int64_t begin, int64_t end) {
      const float* data = weight.data_ptr<float>();
      return std::vector<float>(data + begin * columns, data + end * columns);
    };
    return quantize_rtn(name, weight.size(0), columns, read, format, pool_).planes;
  }

  DecoderLayer layer_;
  const ModelConfig& config_;
  const Recipe& recipe_;
  const QuantizationConfig& plan_;
  CalibrationStreams& streams_;
  ThreadPool& pool_;
  const BlockChoice& chosen_;
  DecoderLayer::Mlp& mlp_;
  std::vector<ReferenceLinear*> qkv_, gate_up_;
  ExactPass pass_;
  LayerInputs inputs_;
  QuantizedLayer result_;
};

void check(const DecoderLayer& layer, const ModelConfig& config) {
  require(layer.mlps.size() == 1, "{}: layer {}: calibrated recipes quantise dense layers",
          config.architecture, layer.index());
}

}  // namespace

QuantizedLayer quantize_layer(DecoderLayer layer, const ModelConfig& config, const Recipe& recipe,
                              const QuantizationConfig& plan, CalibrationStreams& streams, ThreadPool& pool,
                              const BlockChoice& chosen) {
  check(layer, config);
  return LayerQuantizer(std::move(layer), config, recipe, plan, streams, pool, chosen).run();
}

std::map<std::string, ScoredMatrix> score_layer(DecoderLayer layer, const ModelConfig& config,
                                                const Recipe& recipe, const QuantizationConfig& plan,
                                                CalibrationStreams& streams, ThreadPool& pool) {
  check(layer, config);
  const BlockChoice none;
  return LayerQuantizer(std::move(layer), config, recipe, plan, streams, pool, none).scores();
}

}  // namespace quatrain
