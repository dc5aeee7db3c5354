#include "engine/cuda/cuda_forward_pass.h"

#include <algorithm>

#include "base/error.h"
#include "engine/expert_routing.h"
#include "ops/cuda/kv4_decode.h"
#include "ops/cuda/log_probability.h"
#include "ops/cuda/rotate_heads.h"

namespace quatrain {
namespace {

constexpr int64_t kLogitBytes = 64 << 20;
constexpr int64_t kGraphRows = 256;  // of the widest pass that becomes a graph
constexpr unsigned long long kGood = ~0ull;

int64_t longest_row(const ModelConfig& config, const CudaModel& model) {
  int64_t widest = 0;
  for (const CudaLayer& layer : model.layers)
    for (const CudaMlp& mlp : layer.experts) widest = std::max(widest, mlp.gate_up.outputs());
  return std::max(widest, config.hidden);
}

}  // namespace

CudaForwardPass::CudaForwardPass(const CudaModel& model, CudaScratch& scratch, int64_t context)
    : model_(model),
      config_(model.config),
      scratch_(scratch),
      stream_(scratch.stream()),
      max_rows_(scratch.rows()),
      graphs_(std::none_of(model.layers.begin(), model.layers.end(),
                           [](const CudaLayer& layer) { return layer.router.has_value(); })),
      kv_workspace_(static_cast<int>(max_rows_), static_cast<int>(config_.heads),
                    static_cast<int>(config_.head_dim)),
      inputs_(max_rows_, context),
      pinned_bad_((static_cast<size_t>(config_.layers) * kSites + 1) * 8),
      pinned_indices_(static_cast<size_t>(max_rows_) * 8),
      argmax_(max_rows_),
      logit_rows_(std::min(max_rows_, std::max<int64_t>(64, kLogitBytes / (4 * config_.vocabulary)))) {
  const auto floats = [&](int64_t width) {
    return ops::DeviceBuffer<float>(static_cast<size_t>(max_rows_ * width));
  };
  int64_t qkv = 0;
  for (const CudaLayer& layer : model.layers) qkv = std::max(qkv, layer.qkv.outputs());
  for (ops::DeviceBuffer<float>& hidden : hidden_) hidden = floats(config_.hidden);
  delta_ = floats(config_.hidden);
  qkv_ = floats(qkv);
  attended_ = floats(config_.query_width());
  gate_up_ = floats(longest_row(config_, model));
  if (!graphs_) {
    normed_ = floats(config_.hidden);
    expert_in_ = floats(config_.hidden);
    expert_out_ = floats(config_.hidden);
    router_logits_ = floats(config_.moe.experts);
    expert_weights_ = floats(1);
  }
  const auto logit_rows = static_cast<size_t>(logit_rows_);
  head_in_ = ops::DeviceBuffer<float>(logit_rows * static_cast<size_t>(config_.hidden));
  logits_ = ops::DeviceBuffer<float>(logit_rows * static_cast<size_t>(config_.vocabulary));
  scores_ = ops::DeviceBuffer<float>(logit_rows);
  targets_ = ops::DeviceBuffer<int32_t>(logit_rows);
  indices_ = ops::DeviceBuffer<int32_t>(static_cast<size_t>(max_rows_));
  bad_ = ops::DeviceBuffer<unsigned long long>(static_cast<size_t>(config_.layers) * kSites + 1);

  const auto rope = [&](Rope& to, const RopeConfig& from) {
    const std::vector<float> frequencies = from.inverse_frequencies(config_.head_dim);
    to.half = std::ssize(frequencies);
    to.scale = from.attention_scale();
    to.frequencies = ops::DeviceBuffer<float>(frequencies.data(), frequencies.size());
    to.cosine = floats(to.half);
    to.sine = floats(to.half);
  };
  rope(rope_, config_.rope);
  if (std::any_of(model.layers.begin(), model.layers.end(),
                  [](const CudaLayer& layer) { return layer.window > 0; }))
    rope(local_rope_, config_.local_rope);
}

CudaForwardPass::~CudaForwardPass() {
  cudaStreamSynchronize(stream_);
  for (auto& [shape, graph] : pass_graphs_)
    if (graph.exec != nullptr) cudaGraphExecDestroy(graph.exec);
}

void CudaForwardPass::upload(const PassShape& shape) {
  inputs_.upload(shape, stream_);
  ops::cuda_check(cudaMemsetAsync(bad_.data(), 0xFF, bad_.bytes(), stream_), "cudaMemset");
}

PassShape CudaForwardPass::stage(std::span<const Slice> slices, int64_t ahead) {
  settle();  // the last pass may still read its inputs
  // Whether a token runs in a tile or alone depends on its neighbours, and so does the order of its sums.
  const bool tiles = !scratch_.invariant() &&
                     std::all_of(model_.layers.begin(), model_.layers.end(),
                                 [](const CudaLayer& layer) { return ops::tile_attention_fits(layer.kv); });
  return inputs_.stage(slices, ahead, tiles, pages_, model_.page_bytes);
}

void CudaForwardPass::enqueue(const PassShape& shape) {
  const int64_t rows = shape.rows;
  hidden_now_ = 0;
  model_.embedding.look_up(inputs_.tokens(), rows, config_.embedding_scale, hidden(), stream_);
  for (Rope* rope : {&rope_, &local_rope_})
    ops::rope_factors(inputs_.lengths(), rows, rope->frequencies.data(), rope->half, rope->scale,
                      rope->cosine.data(), rope->sine.data(), stream_);
  for (int64_t index = 0; index < config_.layers; ++index) {
    const CudaLayer& layer = model_.layers[static_cast<size_t>(index)];
    attend(layer, index, shape);
    run_mlp(layer, index, shape);
  }
}

void CudaForwardPass::copy_checks() {
  ops::cuda_check(cudaMemcpyAsync(pinned_bad_.as<unsigned long long>(), bad_.data(), bad_.bytes(),
                                  cudaMemcpyDeviceToHost, stream_),
                  "copy of the checks");
}

LinearInput CudaForwardPass::normed_input(bool added, unsigned long long* bad) {
  LinearInput input;
  input.kind = LinearInput::Kind::Norm;
  input.x = hidden();
  input.stride = config_.hidden;
  input.epsilon = config_.norm_epsilon;
  input.bad = bad;
  if (!added) return input;
  hidden_now_ = 1 - hidden_now_;
  input.add = delta_.data();
  input.sum = hidden();
  return input;
}

void CudaForwardPass::attend(const CudaLayer& layer, int64_t index, const PassShape& shape) {
  const int64_t rows = shape.rows, width = layer.qkv.outputs(), query_width = config_.query_width();
  layer.qkv.run(normed_input(index > 0, site(index, kInputNorm)), rows, qkv_.data(), width, scratch_);

  const Rope& rope = layer.window > 0 ? local_rope_ : rope_;
  ops::HeadRotation rotation;
  rotation.heads = config_.heads;
  rotation.kv_heads = config_.kv_heads;
  rotation.head_dim = config_.head_dim;
  rotation.query_norm = layer.query_norm.data();
  rotation.key_norm = layer.key_norm.data();
  rotation.epsilon = config_.norm_epsilon;
  rotation.half = rope.half;
  rotation.cosine = rope.cosine.data();
  rotation.sine = rope.sine.data();
  rotation.hadamard_signs = layer.key_signs.data();
  ops::KvRows kv_rows = inputs_.kv_rows(shape);
  ops::KvAttention attention;
  attention.heads = static_cast<int>(config_.heads);
  attention.scale = config_.attention_scale;
  attention.window = static_cast<int>(layer.window);
  // It only says into how many parts a sequence is split: one, where the batch must not matter.
  attention.max_length = scratch_.invariant() ? 1 : static_cast<int>(shape.max_pages * ops::kKvPageTokens);
  attention.q = qkv_.data();
  attention.q_stride = width;
  attention.out = attended_.data();
  attention.out_stride = query_width;

  LinearInput output;
  output.x = attended_.data();
  output.stride = query_width;
  output.bad = site(index, kOutputInput);
  const bool fast = ops::kv4_decode_fits(layer.kv, attention.heads);
  const bool rotates_apart = layer.key_hadamard || layer.key_matrices;
  ops::KvDecodeStep step;
  if (fast && shape.tiles == 0) {
    // A sequence's only row may store its own key and value while others attend.
    if (!rotates_apart && shape.rows == shape.sequences &&
        ops::turns_in_registers(config_.head_dim, rotation.half))
      step.rotation = &rotation;
    step.pages = pages_;
    step.bad = site(index, kKv);
    const auto target = layer.output.codes_target(scratch_);
    if (target && ops::kv4_decode_makes_codes(layer.kv, attention.heads, target->options, *target->codes)) {
      step.codes = target->codes;
      step.options = target->options;
      step.options.bad = output.bad;
      output.kind = LinearInput::Kind::Codes;
    }
  }
  if (rotates_apart) {
    ops::rotate_heads(rotation, qkv_.data(), rows, width, stream_);
    if (layer.key_hadamard) layer.key_hadamard->apply(qkv_.data(), rows, width, stream_);
    if (layer.key_matrices) layer.key_matrices->apply(qkv_.data(), rows, width, stream_);
    const float* key = qkv_.data() + query_width;
    ops::kv_append(layer.kv, pages_, kv_rows, key, key + config_.kv_width(), width, site(index, kKv),
                   stream_);
  } else if (step.rotation == nullptr) {
    ops::rotate_heads_and_append(rotation, qkv_.data(), width, layer.kv, pages_, kv_rows, site(index, kKv),
                                 stream_);
  }
  ops::tile_attention(layer.kv, pages_, kv_rows, inputs_.tiles(), static_cast<int>(shape.tiles), attention,
                      stream_);
  kv_rows.rows = static_cast<int>(shape.singles);
  if (fast)
    ops::kv4_decode_attention(layer.kv, pages_, kv_rows, attention, kv_workspace_, stream_, step);
  else
    ops::row_attention(layer.kv, pages_, kv_rows, attention, kv_workspace_, stream_);

  layer.output.run(output, rows, delta_.data(), config_.hidden, scratch_);
  if (layer.attention_out_norm.size() > 0)
    ops::rms_norm_rows<float>(delta_.data(), nullptr, nullptr, rows, config_.hidden,
                              layer.attention_out_norm.data(), config_.norm_epsilon, delta_.data(),
                              site(index, kAttentionOut), stream_);
}

void CudaForwardPass::run_mlp(const CudaLayer& layer, int64_t index, const PassShape& shape) {
  if (layer.router) {
    run_experts(layer, index, shape);
  } else {
    run_expert(layer.experts.front(), normed_input(true, site(index, kMlpNorm)), shape.rows, delta_.data(),
               site(index, kDownInput));
  }
  if (layer.mlp_out_norm.size() > 0)
    ops::rms_norm_rows<float>(delta_.data(), nullptr, nullptr, shape.rows, config_.hidden,
                              layer.mlp_out_norm.data(), config_.norm_epsilon, delta_.data(),
                              site(index, kMlpOut), stream_);
}

void CudaForwardPass::run_expert(const CudaMlp& mlp, const LinearInput& input, int64_t rows, float* out,
                                 unsigned long long* bad) {
  LinearInput gated;
  gated.gelu = config_.activation == Activation::GeluTanh;
  if (mlp.gate_up.run_gated(input, rows, mlp.down, gated.gelu, bad, scratch_)) {
    gated.kind = LinearInput::Kind::Codes;
  } else {
    mlp.gate_up.run(input, rows, gate_up_.data(), mlp.gate_up.outputs(), scratch_);
    gated.kind = LinearInput::Kind::Gate;
    gated.x = gate_up_.data();
    gated.stride = mlp.gate_up.outputs();
    gated.bad = bad;
  }
  mlp.down.run(gated, rows, out, config_.hidden, scratch_);
}

// The router's choice is the host's. Experts in index order, each over the tokens that chose it, so that a
// token's sum has one order.
void CudaForwardPass::run_experts(const CudaLayer& layer, int64_t index, const PassShape& shape) {
  const int64_t rows = shape.rows, width = config_.hidden, experts = config_.moe.experts;
  ops::rms_norm_rows<float>(hidden(), delta_.data(), hidden(), rows, width, layer.mlp_norm.data(),
                            config_.norm_epsilon, normed_.data(), site(index, kMlpNorm), stream_);
  const void* input = normed_.data();
  if (layer.router->bf16()) {
    ops::copy_rows(normed_.data(), rows, width, width, scratch_.halves(), stream_);
    input = scratch_.halves();
  }
  layer.router->multiply(scratch_.cublas(), input, rows, router_logits_.data(), experts, stream_,
                         scratch_.invariant());
  std::vector<float> logits(static_cast<size_t>(rows * experts));
  ops::cuda_check(cudaMemcpyAsync(logits.data(), router_logits_.data(), logits.size() * 4,
                                  cudaMemcpyDeviceToHost, stream_),
                  "copy of the router's logits");
  ops::cuda_check(cudaStreamSynchronize(stream_), "routing");
  const ExpertRouting routing = route_to_experts(logits, config_.moe, fmt::format("layer {}", index));
  ops::cuda_check(cudaMemsetAsync(delta_.data(), 0, static_cast<size_t>(rows * width) * 4, stream_),
                  "cudaMemset");
  for (size_t expert = 0; expert < layer.experts.size(); ++expert) {
    const std::vector<RoutedToken>& tokens = routing[expert];
    if (tokens.empty()) continue;
    std::vector<int32_t> index_of;
    std::vector<float> weight_of;
    for (const RoutedToken& token : tokens) {
      index_of.push_back(static_cast<int32_t>(token.row));
      weight_of.push_back(token.weight);
    }
    // Copies from pageable memory have left it when the call returns.
    ops::cuda_check(cudaMemcpyAsync(indices_.data(), index_of.data(), index_of.size() * 4,
                                    cudaMemcpyHostToDevice, stream_),
                    "copy of a routing");
    ops::cuda_check(cudaMemcpyAsync(expert_weights_.data(), weight_of.data(), weight_of.size() * 4,
                                    cudaMemcpyHostToDevice, stream_),
                    "copy of a routing");
    const int64_t count = std::ssize(tokens);
    ops::gather_rows(normed_.data(), indices_.data(), count, width, expert_in_.data(), stream_);
    LinearInput plain;
    plain.x = expert_in_.data();
    plain.stride = width;
    plain.bad = site(index, kMlpNorm);
    run_expert(layer.experts[expert], plain, count, expert_out_.data(), site(index, kDownInput));
    ops::scatter_add_rows(expert_out_.data(), indices_.data(), expert_weights_.data(), count, width,
                          delta_.data(), stream_);
  }
}

cudaGraphExec_t CudaForwardPass::capture(const std::function<void()>& queue) {
  cudaGraph_t graph = nullptr;
  ops::cuda_check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capture");
  try {
    queue();
  } catch (...) {
    cudaStreamEndCapture(stream_, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    throw;
  }
  ops::cuda_check(cudaStreamEndCapture(stream_, &graph), "capture");
  cudaGraphExec_t exec = nullptr;
  const cudaError_t code = cudaGraphInstantiate(&exec, graph, 0);
  cudaGraphDestroy(graph);
  ops::cuda_check(code, "cudaGraphInstantiate");
  return exec;
}

void CudaForwardPass::run(std::span<const Slice> slices) {
  const PassShape shape = stage(slices, 0);
  pending_ = true;
  const auto queue = [&] {
    upload(shape);
    enqueue(shape);
    ops::add_values(hidden(), delta_.data(), shape.rows * config_.hidden, stream_);
    copy_checks();
  };
  if (!graphs_ || shape.tiles > 0 || shape.rows > kGraphRows || shape.rows != shape.sequences) return queue();
  Graph& graph = pass_graphs_[shape];
  // The first pass of a shape sets kernels and libraries up, which a capture must not.
  if (graph.uses++ == 0) return queue();
  if (graph.exec == nullptr) graph.exec = capture(queue);
  ops::cuda_check(cudaGraphLaunch(graph.exec, stream_), "cudaGraphLaunch");
}

void CudaForwardPass::run_head(std::span<const int64_t> rows,
                               const std::function<void(int64_t, int64_t)>& take) {
  pending_ = true;
  for (int64_t first = 0; first < std::ssize(rows); first += logit_rows_) {
    const int64_t count = std::min(logit_rows_, std::ssize(rows) - first);
    auto* indices = pinned_indices_.as<int32_t>();
    ops::cuda_check(cudaStreamSynchronize(stream_), "a forward pass");  // the indices may still be read
    for (int64_t i = 0; i < count; ++i)
      indices[i] = static_cast<int32_t>(inputs_.row_of(rows[static_cast<size_t>(first + i)]));
    ops::cuda_check(cudaMemcpyAsync(indices_.data(), indices, static_cast<size_t>(count) * 4,
                                    cudaMemcpyHostToDevice, stream_),
                    "copy of row numbers");
    ops::gather_rows(hidden(), indices_.data(), count, config_.hidden, head_in_.data(), stream_);
    LinearInput input = normed_input(false, site(config_.layers, 0));
    input.x = head_in_.data();
    model_.head.run(input, count, logits_.data(), config_.vocabulary, scratch_);
    take(first, count);
  }
  copy_checks();
  settle();
}

void CudaForwardPass::logits(std::span<const int64_t> rows, float* out) {
  run_head(rows, [&](int64_t first, int64_t count) {
    ops::cuda_check(
        cudaMemcpyAsync(out + first * config_.vocabulary, logits_.data(),
                        static_cast<size_t>(count * config_.vocabulary) * 4, cudaMemcpyDeviceToHost, stream_),
        "copy of logits");
  });
}

void CudaForwardPass::log_probabilities(std::span<const int64_t> rows, std::span<const int32_t> targets,
                                        float* out) {
  run_head(rows, [&](int64_t first, int64_t count) {
    // Copies from pageable memory have left it when the call returns.
    ops::cuda_check(cudaMemcpyAsync(targets_.data(), targets.data() + first, static_cast<size_t>(count) * 4,
                                    cudaMemcpyHostToDevice, stream_),
                    "copy of targets");
    ops::log_probability_rows(logits_.data(), count, config_.vocabulary, targets_.data(), scores_.data(),
                              stream_);
    ops::cuda_check(cudaMemcpyAsync(out + first, scores_.data(), static_cast<size_t>(count) * 4,
                                    cudaMemcpyDeviceToHost, stream_),
                    "copy of log-probabilities");
  });
}

void CudaForwardPass::settle() {
  if (!pending_) return;
  pending_ = false;
  ops::cuda_check(cudaStreamSynchronize(stream_), "a forward pass");
  const auto* bad = pinned_bad_.as<unsigned long long>();
  for (size_t i = 0; i < bad_.size(); ++i)
    if (bad[i] != kGood) report(i, bad[i]);
}

void CudaForwardPass::report(size_t site, unsigned long long value) const {
  const auto layer = static_cast<int64_t>(site) / kSites;
  const auto which = static_cast<int>(static_cast<int64_t>(site) % kSites);
  const std::string at = fmt::format("layer {}", layer);
  const auto position = [&](unsigned long long row) {
    return inputs_.position_of(static_cast<int64_t>(row));
  };
  if (which == kKv && layer < config_.layers) {
    const auto heads = static_cast<unsigned long long>(config_.kv_heads);
    fail(
        "layer {}: a key or value of KV head {} at position {} is NaN, infinite or too large for FP16; the "
        "weights or the quantisation are broken",
        layer, value % heads, position(value / heads));
  }
  const auto width = static_cast<unsigned long long>(
      which == kOutputInput ? config_.query_width()
      : which == kDownInput && layer < config_.layers
          ? model_.layers[static_cast<size_t>(layer)].experts.front().down.inputs()
          : config_.hidden);
  const std::string where = which == kInputNorm
                                ? layer == 0 ? "embedding" : fmt::format("layer {} MLP", layer - 1)
                            : which == kOutputInput  ? at + " attention output"
                            : which == kAttentionOut ? at + " attention"
                            : which == kMlpNorm      ? at + " attention"
                            : which == kDownInput    ? at + " gated activation"
                                                     : at + " MLP";
  fail(
      "{}: the hidden state of the token at position {} is NaN, infinite or too large to square in FP32, "
      "first in channel {}; the weights or the quantisation are broken",
      where, position(value / width), value % width);
}

std::vector<int32_t> CudaForwardPass::greedy(std::span<const Slice> slices, int64_t steps) {
  const PassShape shape = stage(slices, steps);
  require(graphs_ && shape.rows == shape.sequences && shape.rows <= logit_rows_ && shape.rows <= kGraphRows,
          "greedy decoding on the GPU: {} sequences with {} tokens; it takes one token each, up to {} "
          "sequences, and no mixture of experts",
          shape.sequences, shape.rows, std::min(logit_rows_, kGraphRows));
  pending_ = true;
  ops::DeviceBuffer<int32_t> history(static_cast<size_t>(steps * shape.rows)), step(1);
  ops::cuda_check(cudaDeviceSynchronize(), "greedy decoding");  // they are zeroed on another stream
  const auto pass = [&] {
    enqueue(shape);
    model_.head.run(normed_input(true, site(config_.layers, 0)), shape.rows, logits_.data(),
                    config_.vocabulary, scratch_);
    ops::argmax_rows(logits_.data(), shape.rows, config_.vocabulary, argmax_, inputs_.tokens(), stream_);
    ops::advance_sequences(inputs_.tokens(), inputs_.lengths(), shape.rows, history.data(), step.data(),
                           stream_);
  };
  upload(shape);
  cudaGraphExec_t exec = nullptr;
  for (int64_t i = 0; i < steps; ++i) {
    if (i == 0) {
      pass();
      ops::cuda_check(cudaStreamSynchronize(stream_), "greedy decoding");
      continue;
    }
    if (exec == nullptr) exec = capture(pass);
    ops::cuda_check(cudaGraphLaunch(exec, stream_), "cudaGraphLaunch");
  }
  copy_checks();
  std::vector<int32_t> tokens(history.size());
  const cudaError_t code = cudaStreamSynchronize(stream_);
  if (exec != nullptr) cudaGraphExecDestroy(exec);
  ops::cuda_check(code, "greedy decoding");
  history.download(tokens.data(), tokens.size());
  settle();
  return tokens;
}

}  // namespace quatrain
