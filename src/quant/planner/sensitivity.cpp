#include "quant/planner/sensitivity.h"

#include <torch/torch.h>

#include "base/error.h"
#include "base/progress.h"
#include "base/rng.h"
#include "quant/layer_sites.h"
#include "quant/math_threads.h"
#include "quant/policy.h"
#include "quant/reference/decoder_layer.h"
#include "quant/reference/device.h"
#include "quant/reference/fake_quantize.h"
#include "quant/residual/score.h"
#include "quant/transformed_layer.h"

namespace quatrain {
namespace {

constexpr int64_t kHeadChunk = 64;  // rows of logits at once

// A graph is recorded while it lives. The pipeline runs in inference mode, whose tensors cannot be part of
// one.
struct Recording {
  c10::InferenceMode off{false};
  torch::AutoGradMode gradients{true};
};

// The same layer in tensors that a graph may hold.
void recordable(DecoderLayer& layer) {
  const Recording recording;
  const auto copy = [](torch::Tensor& tensor) {
    if (tensor.defined()) tensor = tensor.clone();
  };
  for (const SiteLinears& site : sites_of(layer))
    for (ReferenceLinear* linear : site.linears)
      for (torch::Tensor* tensor : {&linear->weight, &linear->bias, &linear->input_blocks}) copy(*tensor);
  for (torch::Tensor* tensor :
       {&layer.router, &layer.input_norm, &layer.post_attention_norm, &layer.pre_mlp_norm,
        &layer.post_mlp_norm, &layer.q_norm, &layer.k_norm, &layer.key_transform.key,
        &layer.key_transform.query, &layer.key_transform.mean})
    copy(*tensor);
}

// The input of one site, as its linears see it, and their products.
struct TracedSite {
  size_t site = 0;
  torch::Tensor input;
  std::vector<torch::Tensor> outputs;
};

struct Trace {
  std::vector<TracedSite> sites;
  torch::Tensor out;
};

Trace run_traced(const DecoderLayer& layer, const std::vector<SiteLinears>& sites, const torch::Tensor& x) {
  Trace trace;
  const auto run = [&](size_t site, const torch::Tensor& given) {
    TracedSite traced{site, sites[site].linears[0]->quantize_input(given), {}};
    for (const ReferenceLinear* linear : sites[site].linears)
      traced.outputs.push_back(linear->product(traced.input));
    trace.sites.push_back(traced);
    return traced.outputs;
  };
  const auto qkv = run(0, layer.attention_input(x));
  const auto attended = run(1, layer.mix(qkv[0], qkv[1], qkv[2]));
  const torch::Tensor middle = x + layer.attention_update(attended[0]);
  const torch::Tensor input = layer.mlp_input(middle);
  const auto mlp = [&](size_t expert, const torch::Tensor& rows) {
    const auto gate_up = run(2 + 2 * expert, rows);
    return run(3 + 2 * expert, layer.gated(gate_up[0], gate_up[1]))[0];
  };
  torch::Tensor added;
  if (layer.router.defined()) {
    const DecoderLayer::Routing routing = layer.route(input);
    added = torch::zeros_like(input);
    for (size_t expert = 0; expert < layer.mlps.size(); ++expert) {
      const auto [tokens, shares] = routing.of(static_cast<int64_t>(expert));
      if (tokens.size(0) > 0)
        added = added.index_add(0, tokens, mlp(expert, input.index_select(0, tokens)) * shares);
    }
  } else {
    added = mlp(0, input);
  }
  trace.out = middle + layer.mlp_update(added);
  return trace;
}

class SensitivityPass {
 public:
  SensitivityPass(const WeightSource& source, std::span<const PlanVariant> variants,
                  const std::vector<std::vector<int32_t>>& samples, const SampleWork& work, ThreadPool& pool)
      : source_(source),
        config_(source.config()),
        variants_(variants),
        samples_(samples),
        work_(work),
        pool_(pool),
        results_(variants.size()) {}

  std::vector<Sensitivities> run() {
    Progress progress("layers of the plan", 2 * config_.layers);
    run_forward(progress);
    run_head();
    for (int64_t index = config_.layers - 1; index >= 0; --index) {
      run_layer(index);
      progress.update(2 * config_.layers - index);
    }
    return std::move(results_);
  }

 private:
  // The hidden states of sample s before layer `index`, or behind the last.
  torch::Tensor state(size_t s, int64_t index) const {
    return states_[s].slice(1, index * config_.hidden, (index + 1) * config_.hidden);
  }

  void run_forward(Progress& progress) {
    std::vector<torch::Tensor> like;
    for (const std::vector<int32_t>& ids : samples_) {
      like.push_back(torch::empty({std::ssize(ids), 0}));
      tokens_ += std::ssize(ids);
    }
    states_ = work_.rows(like, config_.hidden * (config_.layers + 1));
    {
      const torch::Tensor embedding = source_.embedding();
      for (size_t s = 0; s < samples_.size(); ++s)
        state(s, 0).copy_(embedded(embedding, samples_[s]) * config_.embedding_scale);
    }
    for (int64_t index = 0; index < config_.layers; ++index) {
      const DecoderLayer layer(source_, index);
      work_.each(samples_.size(), [&](size_t s, const InOrder&) {
        state(s, index + 1).copy_(layer.forward(state(s, index).contiguous()));
      });
      progress.update(index + 1);
    }
  }

  // Gradients at the last hidden states, of labels drawn from the model's own distribution.
  void run_head() {
    ReferenceLinear head = source_.head();
    torch::Tensor norm = source_.plain("model.norm.weight");
    {
      const Recording recording;
      norm = norm.clone();
    }
    gradients_.resize(samples_.size());
    work_.each(samples_.size(), [&](size_t s, const InOrder&) {
      SplitMix64 random(transform_seed(variants_[0].recipe, static_cast<int64_t>(s), "labels"));
      const Recording recording;
      const torch::Tensor x = state(s, config_.layers).clone().requires_grad_(true);
      const torch::Tensor input = rms_norm(x, norm, config_);
      gradients_[s] = torch::autograd::grad({input}, {x}, {head_gradient(head, input.detach(), random)})[0];
    });
  }

  // (softmax - one at the label) W for every token.
  static torch::Tensor head_gradient(const ReferenceLinear& head, const torch::Tensor& input,
                                     SplitMix64& random) {
    const torch::NoGradGuard no_gradients;
    torch::Tensor gradient = torch::empty_like(input);
    for (int64_t begin = 0; begin < input.size(0); begin += kHeadChunk) {
      const int64_t end = std::min(begin + kHeadChunk, input.size(0));
      torch::Tensor share = torch::softmax(head.product(input.slice(0, begin, end)), -1);
      std::vector<double> draws;
      for (int64_t t = begin; t < end; ++t) draws.push_back(random.uniform());
      const torch::Tensor below = share.cumsum(-1, torch::kDouble) <=
                                  torch::tensor(draws, torch::kDouble).to(share.device()).unsqueeze(1);
      const torch::Tensor label = below.sum(-1, true).clamp_max(share.size(1) - 1);
      share = share.scatter_add(1, label, torch::full(label.sizes(), -1.0f, share.options()));
      gradient.slice(0, begin, end).copy_(share.matmul(head.weight));
    }
    return gradient;
  }

  void run_layer(int64_t index) {
    std::vector<torch::Tensor> before;
    for (size_t s = 0; s < samples_.size(); ++s) before.push_back(state(s, index).contiguous());
    const std::vector<torch::Tensor> behind = gradients_;
    for (size_t variant = 0; variant < variants_.size(); ++variant)
      run_variant(index, before, behind, variants_[variant], results_[variant]);
    return_freed_memory();  // gaps between what is kept and what came and went
  }

  // Gradients behind the layer give those at its inputs; every variant gives the same ones before it.
  void run_variant(int64_t index, const std::vector<torch::Tensor>& before,
                   const std::vector<torch::Tensor>& behind, const PlanVariant& variant,
                   Sensitivities& result) {
    TransformedLayer transformed = transform_layer(DecoderLayer(source_, index), config_, variant.recipe,
                                                   variant.config, before, work_, pool_);
    DecoderLayer& layer = transformed.layer;
    recordable(layer);
    const std::vector<SiteLinears> sites = sites_of(layer);
    std::vector<InputCost> inputs(sites.size());
    std::map<std::string, torch::Tensor> information;  // by linear: sum of g_o^2 x_j^2
    work_.each(samples_.size(), [&](size_t s, const InOrder& in_order) {
      const Recording recording;
      const torch::Tensor x = before[s].clone().requires_grad_(true);
      const Trace trace = run_traced(layer, sites, x);
      std::vector<torch::Tensor> watched = {x};
      for (const TracedSite& site : trace.sites) {
        watched.push_back(site.input);
        watched.insert(watched.end(), site.outputs.begin(), site.outputs.end());
      }
      const auto gradients = torch::autograd::grad({trace.out}, watched, {behind[s]});
      const torch::NoGradGuard no_gradients;
      gradients_[s] = gradients[0];
      auto next = gradients.begin() + 1;
      std::vector<InputCost> part(sites.size());
      std::map<std::string, torch::Tensor> own;
      for (const TracedSite& site : trace.sites) {
        const torch::Tensor input = site.input.detach();
        const ReferenceLinear& first = *sites[site.site].linears[0];
        part[site.site] = input_cost(first.name, variant, input, *next++);
        const torch::Tensor squares = input.square();
        for (const ReferenceLinear* linear : sites[site.site].linears)
          own[linear->name] = (*next++).square().t().matmul(squares);
      }
      in_order([&] {
        for (size_t site = 0; site < sites.size(); ++site) {
          inputs[site].own += part[site].own;
          inputs[site].less8 += part[site].less8;
        }
        for (const auto& [name, value] : own) {
          torch::Tensor& sum = information[name];
          sum = sum.defined() ? sum + value : value;
        }
      });
    });
    const double unit = 0.5 / static_cast<double>(tokens_);
    for (size_t site = 0; site < sites.size(); ++site) {
      SensitiveSite& entry = result.sites.emplace_back();
      entry.site = sites[site].site;
      entry.layer = index;
      entry.inputs8 = unit * inputs[site].less8;
      entry.noise = unit * inputs[site].own;
      for (const ReferenceLinear* linear : sites[site].linears) {
        entry.linears.push_back(linear->name);
        result.blocks[linear->name] =
            block_gains(*linear, variant, information[linear->name], unit, entry.noise);
      }
    }
  }

  // Sums over tokens of g^2 e^2: of the inputs' own bits, and what 8 bits take from 4.
  struct InputCost {
    double own = 0, less8 = 0;
  };

  static InputCost input_cost(const std::string& linear, const PlanVariant& variant,
                              const torch::Tensor& input, const torch::Tensor& gradient) {
    ActivationPolicy policy = variant.config.linear(linear).activation;
    const auto cost = [&] {
      const torch::Tensor error = fake_quantize(input, policy, linear) - input;
      return (error.square() * gradient.square()).sum(torch::kDouble).item<double>();
    };
    const double own = cost();
    if (policy.bits != 4) return {own, 0};
    policy.bits = 8;
    return {own, own - cost()};
  }

  // What each residual block gives back; adds what all errors of the 4-bit weights cost to `noise`.
  std::vector<double> block_gains(const ReferenceLinear& linear, const PlanVariant& variant,
                                  const torch::Tensor& information, double unit, double& noise) const {
    const LinearPolicy& policy = variant.config.linear(linear.name);
    const int64_t block = policy.residual_block;
    if (!information.defined())  // an expert that no token reached
      return std::vector<double>(
          static_cast<size_t>((linear.weight.size(0) + kResidualRows - 1) / kResidualRows *
                              ((linear.weight.size(1) + block - 1) / block)));
    const torch::Tensor steps = nearest_steps(linear, variant.recipe, policy, pool_),
                        scaled = information.to(torch::kDouble) * unit;
    for (const double cost : block_scores("hessian-diagonal", linear.weight, steps, scaled, block))
      noise += cost;
    return block_scores("delta-hessian", linear.weight, steps, scaled, block);
  }

  const WeightSource& source_;
  const ModelConfig& config_;
  std::span<const PlanVariant> variants_;
  const std::vector<std::vector<int32_t>>& samples_;
  const SampleWork& work_;
  ThreadPool& pool_;
  int64_t tokens_ = 0;
  std::vector<torch::Tensor> states_, gradients_;  // by sample; the latter at the layer reached so far
  std::vector<Sensitivities> results_;             // by variant
};

}  // namespace

std::vector<Sensitivities> measure_sensitivities(const WeightSource& source,
                                                 std::span<const PlanVariant> variants,
                                                 const std::vector<std::vector<int32_t>>& samples,
                                                 const SampleWork& work, ThreadPool& pool) {
  return SensitivityPass(source, variants, samples, work, pool).run();
}

}  // namespace quatrain
