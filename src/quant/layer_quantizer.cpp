#include "quant/layer_quantizer.h"

#include <chrono>
#include <cmath>
#include <functional>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "quant/input_statistics.h"
#include "quant/layer_sites.h"
#include "quant/policy.h"
#include "quant/reference/device.h"
#include "quant/stopwatch.h"
#include "quant/transformed_layer.h"
#include "quant/transforms/block.h"
#include "quant/weights/gptq.h"
#include "quant/weights/planes.h"
#include "quant/weights/target.h"

namespace quatrain {
namespace {

class LayerQuantizer {
 public:
  LayerQuantizer(TransformedLayer transformed, const ModelConfig& config, const Recipe& recipe,
                 const QuantizationConfig& plan, CalibrationStreams& streams, ThreadPool& pool,
                 const BlockChoice& chosen)
      : transformed_(std::move(transformed)),
        layer_(transformed_.layer),
        pass_(transformed_.pass),
        config_(config),
        recipe_(recipe),
        plan_(plan),
        streams_(streams),
        pool_(pool),
        chosen_(chosen) {}

  QuantizedLayer run() {
    set_policies();
    if (recipe_.follows_stream())
      follow_stream();
    else
      for (const SiteLinears& site : sites_of(layer_)) quantize(site, {});
    if (!pass_.moments.expert_tokens.empty()) result_.coverage = coverage();
    result_.transforms = std::move(transformed_.transforms);
    result_.rescaled = std::move(transformed_.rescaled);
    result_.smoothing = std::move(transformed_.smoothing);
    streams_.exact = std::move(pass_.output);
    return std::move(result_);
  }

 private:
  const LinearPolicy& policy(const ReferenceLinear& linear) const { return plan_.linear(linear.name); }

  // The stream is quantised as the artifact will be, but for methods that look at unquantised inputs.
  void set_policies() {
    if (recipe_.weights.method != "error-aware") return;
    for (const SiteLinears& site : sites_of(layer_))
      for (ReferenceLinear* linear : site.linears) linear->activation = policy(*linear).activation;
    layer_.kv = plan_.kv_of(static_cast<int>(layer_.index()));
  }

  void follow_stream() {
    std::vector<torch::Tensor>& hidden = streams_.quantized;
    const std::vector<SiteLinears> sites = sites_of(layer_);
    quantize_inputs(
        sites[0], [&](size_t s) { return layer_.attention_input(hidden[s]); },
        [&](size_t s) { return layer_.attention_input(streams_.exact[s]); });
    quantize_outputs(
        sites[1], hidden,
        [&](size_t s) {
          const torch::Tensor input = layer_.q.quantize_input(layer_.attention_input(hidden[s]));
          return layer_.mix(layer_.q.product(input), layer_.k.product(input), layer_.v.product(input));
        },
        [&](size_t s) {
          return aim(layer_.o, update_of(s, streams_.exact, pass_.middle, pass_.attention_out),
                     [&] { return streams_.exact[s] - hidden[s]; });
        },
        [&](size_t s, const torch::Tensor& out) { hidden[s] += layer_.attention_update(out); });
    if (layer_.router.defined())
      follow_experts();
    else
      follow_mlp(sites[2], sites[3]);
    measure_stream();
  }

  void follow_mlp(const SiteLinears& gate_up, const SiteLinears& down) {
    std::vector<torch::Tensor>& hidden = streams_.quantized;
    const DecoderLayer::Mlp& mlp = layer_.mlps[0];
    quantize_inputs(
        gate_up, [&](size_t s) { return layer_.mlp_input(hidden[s]); },
        [&](size_t s) { return layer_.mlp_input(pass_.middle[s]); });
    quantize_outputs(
        down, hidden, [&](size_t s) { return inner(mlp, layer_.mlp_input(hidden[s])); },
        [&](size_t s) {
          return aim(mlp.down, update_of(s, pass_.middle, pass_.output, pass_.mlp_out),
                     [&] { return pass_.middle[s] - hidden[s]; });
        },
        [&](size_t s, const torch::Tensor& out) { hidden[s] += layer_.mlp_update(out); });
  }

  // Expert by expert, each for the tokens that the router sends to it in the quantised stream.
  void follow_experts() {
    std::vector<torch::Tensor>& hidden = streams_.quantized;
    std::vector<DecoderLayer::Routing> routing(hidden.size());
    expert_tokens_.assign(layer_.mlps.size(), 0);
    streams_.work.each(hidden.size(), [&](size_t s, const InOrder& in_order) {
      routing[s] = layer_.route(layer_.mlp_input(hidden[s]));
      const torch::Tensor counts = torch::bincount(routing[s].experts.flatten(), {}, config_.moe.experts);
      in_order([&] {
        for (size_t e = 0; e < expert_tokens_.size(); ++e)
          expert_tokens_[e] += counts[static_cast<int64_t>(e)].item<int64_t>();
      });
      rest(s);
    });
    // What the experts add, kept until the last has read the stream before it.
    const std::vector<torch::Tensor> added = streams_.work.rows(hidden, config_.hidden);
    for (const torch::Tensor& rows : added) rows.zero_();
    const std::vector<SiteLinears> sites = sites_of(layer_);
    for (size_t e = 0; e < layer_.mlps.size(); ++e)
      follow_expert(sites[2 + 2 * e], sites[3 + 2 * e], routing, added);
    streams_.work.each(hidden.size(), [&](size_t s, const InOrder&) {
      hidden[s] += layer_.mlp_update(added[s]);
      SampleWork::rest(added[s]);
      rest(s);
    });
  }

  void follow_expert(const SiteLinears& gate_up, const SiteLinears& down,
                     const std::vector<DecoderLayer::Routing>& routing,
                     const std::vector<torch::Tensor>& added) {
    const std::vector<torch::Tensor>& hidden = streams_.quantized;
    const int64_t expert = gate_up.expert;
    const DecoderLayer::Mlp& mlp = layer_.mlps[static_cast<size_t>(expert)];
    DecoderLayer::Mlp exact = mlp;  // its weights before they are quantised
    for (ReferenceLinear* linear : {&exact.gate, &exact.up, &exact.down}) linear->activation = {};
    const bool forced = starved(expert);
    std::vector<torch::Tensor> tokens, like;
    for (size_t s = 0; s < hidden.size(); ++s) {
      tokens.push_back(forced ? torch::arange(hidden[s].size(0), hidden[s].options().dtype(torch::kLong))
                              : routing[s].of(expert).first);
      like.push_back(torch::empty({tokens[s].size(0), 0}));
    }
    const auto input = [&](const torch::Tensor& stream, size_t s) {
      return layer_.mlp_input(stream.index_select(0, tokens[s]));
    };
    quantize_inputs(
        gate_up, [&](size_t s) { return input(hidden[s], s); },
        [&](size_t s) { return input(pass_.middle[s], s); });
    quantize_outputs(
        down, like, [&](size_t s) { return inner(mlp, input(hidden[s], s)); },
        [&](size_t s) {
          const auto product = [&] {
            return exact.down.product(exact.down.quantize_input(inner(exact, input(pass_.middle[s], s))));
          };
          return aim(mlp.down, recipe_.weights.target > 0 ? product() : hidden[s].new_zeros({1}),
                     [&] { return (pass_.middle[s] - hidden[s]).index_select(0, tokens[s]); });
        },
        [&](size_t s, const torch::Tensor& out) {
          const auto [own, shares] = routing[s].of(expert);
          added[s].index_add_(0, own, (forced ? out.index_select(0, own) : out) * shares);
        });
  }

  // Too few tokens for a Hessian of the expert's inputs: it then learns from every token.
  bool starved(int64_t expert) const {
    const int64_t width = std::max(config_.hidden, config_.moe.intermediate);
    return expert_tokens_[static_cast<size_t>(expert)] * kStarvedShare < width;
  }

  Json coverage() const {
    Json report = {{"expert_tokens", expert_tokens_.empty() ? pass_.moments.expert_tokens : expert_tokens_}};
    if (expert_tokens_.empty()) return report;  // no weight was chosen from an expert's own inputs
    report["starved"] = Json::array();
    for (size_t e = 0; e < layer_.mlps.size(); ++e)
      if (starved(static_cast<int64_t>(e)))
        report["starved"].push_back(fmt::format("model.layers.{}.mlp.experts.{}", layer_.index(), e));
    return report;
  }

  // The input of down, before its quantiser.
  torch::Tensor inner(const DecoderLayer::Mlp& mlp, const torch::Tensor& x) const {
    const torch::Tensor input = mlp.gate.quantize_input(x);
    return layer_.gated(mlp.gate.product(input), mlp.up.product(input));
  }

  // What o or down adds to sample s of the unquantised stream: the difference of the stream before and behind
  // it, or its product where a norm stands between.
  static torch::Tensor update_of(size_t s, const std::vector<torch::Tensor>& before,
                                 const std::vector<torch::Tensor>& after,
                                 const std::vector<torch::Tensor>& products) {
    return products.empty() ? after[s] - before[s] : products[s];
  }

  bool corrected() const { return recipe_.weights.target > 0 || recipe_.weights.stream > 0; }

  // What the outputs of `linear` should hold beside 1 - weights.target of its plain product: weights.target
  // of `update`, its product in the unquantised stream, and weights.stream of lack(), what the quantised
  // stream lacks before it.
  template <typename Lack>
  torch::Tensor aim(const ReferenceLinear& linear, torch::Tensor update, Lack lack) const {
    if (linear.bias.defined()) update = update - linear.bias;
    update = recipe_.weights.target * update;
    if (recipe_.weights.stream > 0) update = update + recipe_.weights.stream * lack();
    return update;
  }

  void measure_stream() {
    const std::vector<torch::Tensor>& hidden = streams_.quantized;
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
  void quantize_inputs(const SiteLinears& site, Input input, Exact exact) {
    const double target = recipe_.weights.target;
    const ReferenceLinear& first = *site.linears[0];
    InputStatistics statistics;
    streams_.work.each(streams_.quantized.size(), [&](size_t s, const InOrder& in_order) {
      const torch::Tensor given = input(s);
      if (given.size(0) == 0) return;
      const torch::Tensor x = first.quantize_input(given);
      const torch::Tensor gram = upper_gram(x);
      torch::Tensor cross;
      if (target > 0) cross = apply_blocks(exact(s), first.input_blocks).t().matmul(x);
      in_order([&] {
        statistics.add(gram, x.size(0));
        if (target > 0) statistics.add_cross(cross);
      });
      rest(s);
    });
    torch::Tensor pull;
    if (target > 0) pull = target * weights_of(site.linears).to(torch::kDouble).matmul(statistics.cross());
    quantize(site, statistics.hessian(), pull, 1 - target);
  }

  // A linear that adds to the residual stream: input(s) and aim_of(s) [tokens of like[s], ...]; add(s,
  // product) moves the quantised stream behind it.
  template <typename Input, typename Aim, typename Add>
  void quantize_outputs(const SiteLinears& site, const std::vector<torch::Tensor>& like, Input input,
                        Aim aim_of, Add add) {
    const ReferenceLinear& linear = *site.linears[0];
    InputStatistics statistics;
    const std::vector<torch::Tensor> inputs = streams_.work.rows(like, linear.weight.size(1));
    streams_.work.each(inputs.size(), [&](size_t s, const InOrder& in_order) {
      if (like[s].size(0) == 0) return;
      const torch::Tensor x = linear.quantize_input(input(s));
      inputs[s].copy_(x);
      const torch::Tensor gram = upper_gram(x);
      torch::Tensor cross;
      if (corrected()) cross = aim_of(s).t().matmul(x);
      in_order([&] {
        statistics.add(gram, x.size(0));
        if (corrected()) statistics.add_cross(cross);
      });
      SampleWork::rest(inputs[s]);
      rest(s);
    });
    quantize(site, statistics.hessian(), corrected() ? statistics.cross() : torch::Tensor(),
             1 - recipe_.weights.target);
    streams_.work.each(inputs.size(), [&](size_t s, const InOrder&) {
      if (like[s].size(0) == 0) return;
      add(s, linear.product(inputs[s]));
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
  void quantize(const SiteLinears& site, const torch::Tensor& hessian, const torch::Tensor& pull = {},
                double rest = 1) {
    const std::vector<ReferenceLinear*>& linears = site.linears;
    const bool whole = std::all_of(linears.begin(), linears.end(), [](const ReferenceLinear* linear) {
      return linear->weight.size(0) % kResidualRows == 0;
    });
    if (linears.size() > 1 && !whole) {
      int64_t row = 0;
      for (ReferenceLinear* linear : linears) {
        const int64_t end = row + linear->weight.size(0);
        quantize({site.site, site.expert, {linear}}, hessian, pull.defined() ? pull.slice(0, row, end) : pull,
                 rest);
        row = end;
      }
      return;
    }
    const auto start = std::chrono::steady_clock::now();
    const torch::Tensor weight = weights_of(linears);
    const torch::Tensor target = pull.defined() ? corrected_target(weight, hessian, pull, rest) : weight;
    Json report = Json::object();
    const NibblePlanes planes = rounded(site, target.contiguous(), hessian, chosen_of(linears), report);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    int64_t row = 0;
    for (ReferenceLinear* linear : linears) {
      const int64_t end = row + linear->weight.size(0);
      NibblePlanes part = linears.size() == 1 ? planes : slice_rows(planes, row, end);
      if (linear->bias.defined()) {
        const torch::Tensor bias = in_memory(linear->bias);
        part.bias.assign(bias.data_ptr<float>(), bias.data_ptr<float>() + bias.numel());
      }
      const torch::Tensor quantized = dequantized(part, linear->weight.device(), pool_);
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

  NibblePlanes rounded(const SiteLinears& site, const torch::Tensor& weight, const torch::Tensor& hessian,
                       std::optional<std::vector<int32_t>> chosen, Json& report) {
    const ReferenceLinear& first = *site.linears[0];
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
    else if (recipe_.scores_inputs())
      sensitivity = transformed_.inputs.sensitivity(site.site);
    if (sensitivity.defined()) {
      const torch::Tensor diagonal = in_memory(sensitivity.to(torch::kFloat));
      format.column_weight.assign(diagonal.data_ptr<float>(), diagonal.data_ptr<float>() + diagonal.numel());
    }
    return round_to_nearest(first.name, weight, format, pool_);
  }

  // An expert that fewer tokens reach than this part of its widest input is starved.
  static constexpr int64_t kStarvedShare = 4;

  TransformedLayer transformed_;
  DecoderLayer& layer_;
  ExactPass& pass_;
  const ModelConfig& config_;
  const Recipe& recipe_;
  const QuantizationConfig& plan_;
  CalibrationStreams& streams_;
  ThreadPool& pool_;
  const BlockChoice& chosen_;
  std::vector<int64_t> expert_tokens_;  // in the quantised stream, by expert
  QuantizedLayer result_;
};

}  // namespace

torch::Tensor dequantized(const NibblePlanes& planes, torch::Device device, ThreadPool& pool) {
  const torch::Tensor weight = torch::empty({planes.rows, planes.columns}, torch::kFloat);
  pool.parallel_for(planes.rows, 64, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row)
      planes.dequantize_row(row, weight.data_ptr<float>() + row * planes.columns);
  });
  return weight.to(device);
}

QuantizedLayer quantize_layer(DecoderLayer layer, const ModelConfig& config, const Recipe& recipe,
                              const QuantizationConfig& plan, CalibrationStreams& streams, ThreadPool& pool,
                              const BlockChoice& chosen) {
  const Stopwatch watch;
  TransformedLayer transformed =
      transform_layer(std::move(layer), config, recipe, plan, streams.exact, streams.work, pool);
  const double seconds = watch.seconds();
  QuantizedLayer result =
      LayerQuantizer(std::move(transformed), config, recipe, plan, streams, pool, chosen).run();
  result.transform_seconds = seconds;
  return result;
}

std::map<std::string, ScoredMatrix> score_layer(DecoderLayer layer, const ModelConfig& config,
                                                const Recipe& recipe, const QuantizationConfig& plan,
                                                CalibrationStreams& streams, ThreadPool& pool) {
  TransformedLayer transformed =
      transform_layer(std::move(layer), config, recipe, plan, streams.exact, streams.work, pool);
  streams.exact = std::move(transformed.pass.output);
  return score_blocks(transformed, recipe, plan, pool);
}

}  // namespace quatrain
