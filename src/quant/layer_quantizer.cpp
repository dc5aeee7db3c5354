#include "quant/layer_quantizer.h"

#include <chrono>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "quant/layer_moments.h"
#include "quant/policy.h"
#include "quant/transforms/balance.h"
#include "quant/transforms/block.h"
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

// What one product's quantised inputs X and the outputs they should give leave behind: sums over tokens.
class InputStatistics {
 public:
  void add(const torch::Tensor& x) {
    accumulate(hessian_, x.t().matmul(x));
    tokens_ += x.size(0);
  }
  /// Y^T X of another matrix Y [tokens, n].
  void add_cross(const torch::Tensor& y, const torch::Tensor& x) { accumulate(cross_, y.t().matmul(x)); }

  torch::Tensor hessian() const { return hessian_ / static_cast<double>(tokens_); }
  torch::Tensor cross() const { return cross_ / static_cast<double>(tokens_); }

 private:
  static void accumulate(torch::Tensor& sum, const torch::Tensor& part) {
    if (!sum.defined()) sum = torch::zeros(part.sizes(), torch::kDouble);
    sum += part;
  }
  torch::Tensor hessian_, cross_;
  int64_t tokens_ = 0;
};

class LayerQuantizer {
 public:
  LayerQuantizer(DecoderLayer layer, const ModelConfig& config, const Recipe& recipe,
                 const QuantizationConfig& plan, CalibrationStreams& streams, ThreadPool& pool)
      : layer_(std::move(layer)),
        config_(config),
        recipe_(recipe),
        plan_(plan),
        streams_(streams),
        pool_(pool),
        mlp_(layer_.mlps[0]),
        qkv_{&layer_.q, &layer_.k, &layer_.v},
        gate_up_{&mlp_.gate, &mlp_.up} {}

  QuantizedLayer run() {
    if (!streams_.exact.empty()) {
      const auto balanced = [&](const ReferenceLinear& linear) {
        const Transform& transform = policy(linear).input_transform;
        return transform.kind == "block" ? transform.order : 0;
      };
      pass_ = run_exact(layer_, config_, streams_.exact, balanced(layer_.q), balanced(mlp_.down));
    }
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
  const LinearPolicy& policy(const ReferenceLinear& linear) const { return plan_.linear(linear.name); }
  uint64_t seed(std::string_view site) const { return transform_seed(recipe_, layer_.index(), site); }

  void merge_transforms() {
    merge_value();
    set_keys();
    merge_inputs(qkv_, pass_.moments.attention, "attention");
    merge_inputs(gate_up_, pass_.moments.mlp, "mlp");
    merge_inputs({&layer_.o}, {}, "output");
    if (recipe_.transform.down == "grouped-offset-hadamard")
      permute_inner(mlp_,
                    offset_grouping(pass_.moments.down_largest, policy(mlp_.down).input_transform.order));
    merge_inputs({&mlp_.down}, pass_.moments.down, "down");
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
  }

  void merge_value() {
    const std::string& kind = recipe_.transform.value;
    if (kind == "none") return;
    const int64_t dim = config_.head_dim, shared = config_.heads / config_.kv_heads;
    if (kind == "hadamard-per-head") {
      const torch::Tensor turn = hadamard_rotation(dim, hadamard_order(dim), seed("value"));
      merge_value_transform(layer_, turn.expand({config_.kv_heads, dim, dim}).contiguous());
      return;
    }
    const auto pooled = [&](const torch::Tensor& by_head) {
      return by_head.reshape({config_.kv_heads, shared, dim, dim}).sum(1);
    };
    const torch::Tensor moments =
        pooled(pass_.moments.mixed) / static_cast<double>(pass_.moments.tokens * shared);
    const torch::Tensor gram = pooled(block_moments(layer_.o.weight.to(torch::kDouble), dim));
    merge_value_transform(layer_, balance(moments, gram, kInputDamping, seed("value")));
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
    const double target = recipe_.weights.target;
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
        streams_.exact, pass_.middle, target);
    quantize_inputs(
        gate_up_, [&](size_t s) { return layer_.mlp_input(hidden[s]); },
        [&](size_t s) { return layer_.mlp_input(pass_.middle[s]); });
    quantize_outputs(
        mlp_.down,
        [&](size_t s) {
          const torch::Tensor input = mlp_.gate.quantize_input(layer_.mlp_input(hidden[s]));
          return layer_.gated(mlp_.gate.product(input), mlp_.up.product(input));
        },
        pass_.middle, pass_.output, target);
    double error = 0, power = 0;
    for (size_t s = 0; s < hidden.size(); ++s) {
      error += (hidden[s] - pass_.output[s]).square().sum().item<double>();
      power += pass_.output[s].square().sum().item<double>();
    }
    result_.stream_error = power > 0 ? std::sqrt(error / power) : 0;
  }

  // Linears that read the residual stream: input(s) of the quantised stream, exact(s) of the other.
  template <typename Input, typename Exact>
  void quantize_inputs(const std::vector<ReferenceLinear*>& linears, Input input, Exact exact) {
    const double target = recipe_.weights.target;
    InputStatistics statistics;
    for (size_t s = 0; s < streams_.quantized.size(); ++s) {
      const torch::Tensor x = linears[0]->quantize_input(input(s));
      statistics.add(x);
      if (target > 0) statistics.add_cross(apply_blocks(exact(s), linears[0]->input_blocks), x);
    }
    torch::Tensor pull;
    if (target > 0) pull = target * weights_of(linears).to(torch::kDouble).matmul(statistics.cross());
    quantize(linears, statistics.hessian(), pull, 1 - target);
  }

  // A linear that adds to the residual stream, which the unquantised one takes from before[s] to after[s]:
  // its outputs aim `target` of the way at the unquantised update, and at `stream` of what the quantised
  // stream lacks before it. Moves the quantised stream behind the linear.
  template <typename Input>
  void quantize_outputs(ReferenceLinear& linear, Input input, const std::vector<torch::Tensor>& before,
                        const std::vector<torch::Tensor>& after, double target) {
    const double stream = recipe_.weights.stream;
    InputStatistics statistics;
    std::vector<torch::Tensor> inputs;
    for (size_t s = 0; s < streams_.quantized.size(); ++s) {
      inputs.push_back(linear.quantize_input(input(s)));
      statistics.add(inputs.back());
      if (target == 0 && stream == 0) continue;
      torch::Tensor update = after[s] - before[s];
      if (linear.bias.defined()) update -= linear.bias;
      statistics.add_cross(target * update + stream * (before[s] - streams_.quantized[s]), inputs.back());
    }
    const bool corrected = target > 0 || stream > 0;
    quantize({&linear}, statistics.hessian(), corrected ? statistics.cross() : torch::Tensor(), 1 - target);
    for (size_t s = 0; s < inputs.size(); ++s) {
      streams_.quantized[s] = streams_.quantized[s] + linear.product(inputs[s]);
      inputs[s].reset();
    }
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
    const NibblePlanes planes = rounded(*linears[0], target.contiguous(), hessian, report);
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

  NibblePlanes rounded(const ReferenceLinear& first, const torch::Tensor& weight,
                       const torch::Tensor& hessian, Json& report) {
    WeightFormat format = weight_format(recipe_, policy(first), first.name);
    if (recipe_.weights.method != "rtn") {
      GptqOptions options;
      options.damping = recipe_.weights.damping;
      options.static_groups = true;
      GptqResult result = quantize_gptq(first.name, weight, hessian, format, {}, options);
      report["damping"] = result.damping;
      if (result.fallback) report["fallback"] = "round to nearest: the Hessian is not positive definite";
      return std::move(result.planes);
    }
    if (hessian.defined()) {
      const torch::Tensor diagonal = hessian.diagonal().to(torch::kFloat).contiguous();
      format.column_weight.assign(diagonal.data_ptr<float>(), diagonal.data_ptr<float>() + diagonal.numel());
    }
    const int64_t columns = weight.size(1);
    const RowReader read = [&](int64_t begin, int64_t end) {
      const float* data = weight.data_ptr<float>();
      return std::vector<float>(data + begin * columns, data + end * columns);
    };
    return quantize_rtn(first.name, weight.size(0), columns, read, format, pool_).planes;
  }

  DecoderLayer layer_;
  const ModelConfig& config_;
  const Recipe& recipe_;
  const QuantizationConfig& plan_;
  CalibrationStreams& streams_;
  ThreadPool& pool_;
  DecoderLayer::Mlp& mlp_;
  std::vector<ReferenceLinear*> qkv_, gate_up_;
  ExactPass pass_;
  QuantizedLayer result_;
};

}  // namespace

QuantizedLayer quantize_layer(DecoderLayer layer, const ModelConfig& config, const Recipe& recipe,
                              const QuantizationConfig& plan, CalibrationStreams& streams, ThreadPool& pool) {
  require(layer.mlps.size() == 1 && !config.sandwich_norms,
          "{}: layer {}: calibrated recipes quantise dense layers without sandwich norms",
          config.architecture, layer.index());
  return LayerQuantizer(std::move(layer), config, recipe, plan, streams, pool).run();
}

}  // namespace quatrain
