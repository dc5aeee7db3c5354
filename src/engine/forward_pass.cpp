#include "engine/forward_pass.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <string>

#include "base/error.h"
#include "engine/expert_routing.h"
#include "ops/attention.h"
#include "ops/gated_activation.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"

namespace quatrain {
namespace {

constexpr int64_t kRowGrain = 8;  // tokens of one work item in steps that go token by token
// Tokens that a thread takes through all steps between two attentions: their values stay in its caches, and
// no thread waits for another. Pieces shrink towards the end, so that threads finish together; the least is
// enough that reading the weights from the shared cache costs little.
constexpr int64_t kMostPiece = 64, kLeastPiece = 24;
// Tokens a thread below which threads share every step instead: there are too few pieces to end together.
constexpr int64_t kPieceTokens = 96;

}  // namespace

ForwardPass::ForwardPass(const Model& model, ThreadPool& pool)
    : model_(model), config_(model.config), pool_(pool), workers_(static_cast<size_t>(pool.threads())) {
  rope_.frequencies = config_.rope.inverse_frequencies(config_.head_dim);
  rope_.scale = config_.rope.attention_scale();
  for (const Layer& layer : model.layers) has_local_rope_ = has_local_rope_ || layer.local_rope;
  if (has_local_rope_) {
    local_rope_.frequencies = config_.local_rope.inverse_frequencies(config_.head_dim);
    local_rope_.scale = config_.local_rope.attention_scale();
  }
}

const float* ForwardPass::run(std::span<const Slice> slices) {
  slices_ = slices;
  first_row_.clear();
  position_.clear();
  for (const Slice& slice : slices) {
    first_row_.push_back(std::ssize(position_));
    for (int64_t t = 0; t < std::ssize(slice.tokens); ++t) position_.push_back(slice.position + t);
  }
  rows_ = std::ssize(position_);
  const auto size = [&](AlignedBuffer<float>& buffer, int64_t width) {
    buffer.resize(static_cast<size_t>(rows_ * width));
  };
  size(hidden_, config_.hidden);
  size(normed_, config_.hidden);
  size(delta_, config_.hidden);
  size(attended_, config_.query_width());
  size(qkv_, config_.query_width() + 2 * config_.kv_width());

  clock_.start();
  compute_rope();
  clock_.lap(Operator::Rope);
  for_pieces([&](const Piece& piece) {
    const Layer& first = model_.layers.front();
    embed(piece);
    add_and_norm(false, {}, first.input_norm, "embedding", piece);
    project(first, 0, piece);
  });
  for (int64_t index = 0; index < config_.layers; ++index) {
    const Layer& layer = model_.layers[static_cast<size_t>(index)];
    attend(layer, index);
    const auto before_mlp = [&](const Piece& piece) {
      run_output(layer, index, piece);
      add_and_norm(true, layer.attention_out_norm, layer.mlp_norm, fmt::format("layer {} attention", index),
                   piece);
    };
    const auto after_mlp = [&](const Piece& piece) {
      const bool last = index + 1 == config_.layers;
      const Layer* next = last ? nullptr : &model_.layers[static_cast<size_t>(index + 1)];
      add_and_norm(true, layer.mlp_out_norm, last ? model_.final_norm : next->input_norm,
                   fmt::format("layer {} MLP", index), piece);
      if (!last) project(*next, index + 1, piece);
    };
    const auto mlp = [&](const Piece& piece) { run_mlp(layer, index, piece); };
    if (layer.router) {  // an expert takes its tokens together
      for_pieces(before_mlp);
      for_whole(mlp);
      for_pieces(after_mlp);
    } else {
      for_pieces([&](const Piece& piece) {
        before_mlp(piece);
        mlp(piece);
        after_mlp(piece);
      });
    }
  }
  return normed_.data();
}

template <typename Steps>
void ForwardPass::for_whole(const Steps& steps) {
  LinearScratch& scratch = workers_.front().scratch;
  scratch.threads = pool_.threads();
  scratch.clock.start();
  steps(Piece{0, rows_, workers_.front()});
  take_time();
}

template <typename Steps>
void ForwardPass::for_pieces(const Steps& steps) {
  const auto threads = std::ssize(workers_);
  if (rows_ < kPieceTokens * threads || check_.on) return for_whole(steps);
  piece_starts_.assign(1, 0);
  while (piece_starts_.back() < rows_) {
    const int64_t left = rows_ - piece_starts_.back();
    const int64_t count = std::clamp(left / (2 * threads), kLeastPiece, kMostPiece) / kRowGrain * kRowGrain;
    piece_starts_.push_back(std::min(rows_, piece_starts_.back() + count));
  }
  pool_.parallel_for(std::ssize(piece_starts_) - 1, 1, [&](int64_t begin, int64_t end, int thread) {
    Worker& worker = workers_[static_cast<size_t>(thread)];
    worker.scratch.threads = 1;
    worker.scratch.clock.start();
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = piece_starts_[static_cast<size_t>(i)];
      steps(Piece{first, piece_starts_[static_cast<size_t>(i + 1)] - first, worker});
    }
  });
  take_time();
}

void ForwardPass::take_time() {
  clock_.lap(workers_, [](Worker& worker) -> OperatorClock& { return worker.scratch.clock; });
}

void ForwardPass::logits(const float* hidden, int64_t rows, float* out) {
  clock_.start();
  const auto step = [&] {
    for_whole([&](const Piece& piece) {
      model_.head.run({hidden, config_.hidden, {}}, rows, pool_, piece.worker.scratch, out,
                      config_.vocabulary, Operator::Head);
    });
  };
  step();
  check_.compare("head", -1, out, rows * config_.vocabulary, step);
}

void ForwardPass::embed(const Piece& piece) {
  const int64_t width = config_.hidden;
  for (size_t s = 0; s < slices_.size(); ++s) {
    const Slice& slice = slices_[s];
    const int64_t first = std::max<int64_t>(0, piece.first - first_row_[s]);
    const int64_t last = std::min(std::ssize(slice.tokens), piece.first + piece.count - first_row_[s]);
    pool_.parallel_for(last - first, kRowGrain, [&](int64_t begin, int64_t end, int) {
      for (int64_t t = first + begin; t < first + end; ++t)
        model_.embedding->look_up(slice.tokens[static_cast<size_t>(t)], config_.embedding_scale,
                                  hidden_.data() + (first_row_[s] + t) * width);
    });
  }
  piece.worker.scratch.clock.lap(Operator::Embedding);
}

void ForwardPass::compute_rope() {
  const auto compute = [&](Rope& rope) {
    const auto half = std::ssize(rope.frequencies);
    rope.cosine.resize(static_cast<size_t>(rows_ * half));
    rope.sine.resize(static_cast<size_t>(rows_ * half));
    pool_.parallel_for(rows_, kRowGrain, [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row)
        ops::rope_factors(position_[static_cast<size_t>(row)], rope.frequencies, rope.scale,
                          rope.cosine.data() + row * half, rope.sine.data() + row * half);
    });
  };
  compute(rope_);
  if (has_local_rope_) compute(local_rope_);
}

void ForwardPass::add_and_norm(bool add, const std::vector<float>& sandwich, const std::vector<float>& norm,
                               std::string_view where, const Piece& piece) {
  const int64_t width = config_.hidden;
  pool_.parallel_for(piece.count, kRowGrain, [&](int64_t first, int64_t last, int) {
    const int64_t begin = piece.first + first, end = piece.first + last;
    float* hidden = hidden_.data() + begin * width;
    if (add) {
      float* delta = delta_.data() + begin * width;
      const int64_t count = (end - begin) * width;
      if (!sandwich.empty()) {
        const int64_t bad = ops::rms_norm(delta, end - begin, width, width, sandwich.data(),
                                          config_.norm_epsilon, delta, width);
        if (bad >= 0) fail_not_finite(where, begin + bad, delta + bad * width, width);
      }
      for (int64_t i = 0; i < count; ++i) hidden[i] += delta[i];
    }
    const int64_t bad = ops::rms_norm(hidden, end - begin, width, width, norm.data(), config_.norm_epsilon,
                                      normed_.data() + begin * width, width);
    if (bad >= 0) fail_not_finite(where, begin + bad, hidden + bad * width, width);
  });
  float* normed = normed_.data() + piece.first * width;
  check_.compare("norm", -1, normed, piece.count * width, [&] {
    ops::rms_norm(hidden_.data() + piece.first * width, piece.count, width, width, norm.data(),
                  config_.norm_epsilon, normed, width);
  });
  piece.worker.scratch.clock.lap(Operator::Norm);
}

void ForwardPass::fail_not_finite(std::string_view where, int64_t row, const float* values,
                                  int64_t width) const {
  int64_t channel = 0;
  while (channel + 1 < width && std::isfinite(values[channel])) ++channel;
  const bool found = !std::isfinite(values[channel]);
  fail("{}: the hidden state of the token at position {} {}; the weights or the quantisation are broken",
       where, position_[static_cast<size_t>(row)],
       found ? fmt::format("is {} in channel {}", values[channel], channel)
             : std::string("is too large to square in FP32"));
}

void ForwardPass::project(const Layer& layer, int64_t index, const Piece& piece) {
  const int64_t width = layer.qkv.outputs();
  float* qkv = qkv_.data() + piece.first * width;
  const auto step = [&] {
    layer.qkv.run({normed_.data() + piece.first * config_.hidden, config_.hidden, {}, piece.first},
                  piece.count, pool_, piece.worker.scratch, qkv, width, Operator::Qkv);
    rotate_heads(layer, piece);
  };
  step();
  check_.compare("qkv", index, qkv, piece.count * width, step);
}

void ForwardPass::attend(const Layer& layer, int64_t index) {
  const int64_t query_width = config_.query_width();
  std::vector<ops::AttentionSequence> sequences;
  for (size_t s = 0; s < slices_.size(); ++s)
    sequences.push_back({qkv_.data() + first_row_[s] * layer.qkv.outputs(),
                         attended_.data() + first_row_[s] * query_width, std::ssize(slices_[s].tokens),
                         slices_[s].position, slices_[s].sequence->pages.data(),
                         slices_[s].sequence->exact.data()});
  const ops::AttentionShape shape{.heads = config_.heads,
                                  .scale = config_.attention_scale,
                                  .window = layer.window,
                                  .sink = exact_.sink,
                                  .recent = exact_.recent,
                                  .query_stride = layer.qkv.outputs(),
                                  .out_stride = query_width};
  const auto step = [&] {
    append_keys_and_values(layer, index);
    clock_.lap(Operator::KvAppend);
    ops::attention(layer.kv, shape, sequences, pool_,
                   exact_.any() && layer.exact_kv.bytes() > 0 ? &layer.exact_kv : nullptr);
    clock_.lap(Operator::Attention);
  };
  step();
  check_.compare("attention", index, attended_.data(), rows_ * query_width, step);
}

void ForwardPass::run_output(const Layer& layer, int64_t index, const Piece& piece) {
  const int64_t width = config_.query_width();
  float* delta = delta_.data() + piece.first * config_.hidden;
  const auto step = [&] {
    layer.output.run({attended_.data() + piece.first * width, width, {}, piece.first}, piece.count, pool_,
                     piece.worker.scratch, delta, config_.hidden, Operator::Output);
  };
  step();
  check_.compare("output", index, delta, piece.count * config_.hidden, step);
}

// Norms of the heads, RoPE and the key transform on q and k, which lie side by side.
void ForwardPass::rotate_heads(const Layer& layer, const Piece& piece) {
  const int64_t dim = config_.head_dim, heads = config_.heads, stride = layer.qkv.outputs();
  const Rope& rope = layer.local_rope ? local_rope_ : rope_;
  const auto half = std::ssize(rope.frequencies);
  LinearScratch& scratch = piece.worker.scratch;
  // Heads [first, last) of one row. A broken value makes attention's result NaN or infinite, which the next
  // norm reports.
  const auto rotate = [&](int64_t row, int64_t first, int64_t last) {
    float* head = qkv_.data() + row * stride;
    const auto norm = [&](int64_t begin, int64_t end, const std::vector<float>& weight) {
      if (begin < end && !weight.empty())
        ops::rms_norm(head + begin * dim, end - begin, dim, dim, weight.data(), config_.norm_epsilon,
                      head + begin * dim, dim);
    };
    norm(first, std::min(last, heads), layer.query_norm);
    norm(std::max(first, heads), last, layer.key_norm);
    ops::rope(head + first * dim, last - first, dim, half, rope.cosine.data() + row * half,
              rope.sine.data() + row * half);
  };
  const int64_t all = heads + config_.kv_heads;
  if (!layer.key_transform) {
    pool_.parallel_for(piece.count, kRowGrain, [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) rotate(piece.first + row, 0, all);
    });
    return scratch.clock.lap(Operator::Rope);
  }
  TransformTime time;
  for_row_parts(piece.count, all, pool_, [&](int64_t row, int64_t count, int64_t first, int64_t last) {
    row += piece.first;
    for (int64_t r = row; r < row + count; ++r) rotate(r, first, last);
    time.add([&] { layer.key_transform->apply(qkv_.data() + row * stride, count, stride, first, last); });
  });
  scratch.clock.lap(Operator::Rope, Operator::KeyTransform, time.seconds() / scratch.threads);
}

void ForwardPass::append_keys_and_values(const Layer& layer, int64_t index) {
  // One item writes the tokens of one head of one page.
  struct Item {
    std::byte* page;
    std::byte* exact;
    int64_t head, slot, count, row;
  };
  std::vector<Item> items;
  for (size_t s = 0; s < slices_.size(); ++s) {
    const KvSequence& sequence = *slices_[s].sequence;
    const int64_t begin = slices_[s].position, end = begin + std::ssize(slices_[s].tokens);
    for (int64_t position = begin; position < end;) {
      const int64_t page = position / ops::kPageTokens, slot = position % ops::kPageTokens;
      const int64_t count = std::min(end - position, ops::kPageTokens - slot);
      for (int64_t head = 0; head < config_.kv_heads; ++head)
        items.push_back({sequence.pages[static_cast<size_t>(page)],
                         layer.exact_kv.bytes() > 0 && page < std::ssize(sequence.exact)
                             ? sequence.exact[static_cast<size_t>(page)]
                             : nullptr,
                         head, slot, count, first_row_[s] + position - begin});
      position += count;
    }
  }
  const int64_t stride = layer.qkv.outputs();
  pool_.parallel_for(
      std::ssize(items), rows_ < kRowGrain ? std::ssize(items) : 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) {
          const Item& item = items[static_cast<size_t>(i)];
          const float* key =
              qkv_.data() + item.row * stride + config_.query_width() + item.head * config_.head_dim;
          const float* value = key + config_.kv_width();
          const bool stored =
              ops::kv_append(layer.kv, item.page, item.head, item.slot, item.count, key, value, stride) &&
              (item.exact == nullptr || ops::kv_append(layer.exact_kv, item.exact, item.head, item.slot,
                                                       item.count, key, value, stride));
          if (!stored)
            fail(
                "layer {}: a key or value of KV head {} at positions {} to {} is NaN, infinite or "
                "too large for an FP16 scale; the weights or the quantisation are broken",
                index, item.head, position_[static_cast<size_t>(item.row)],
                position_[static_cast<size_t>(item.row + item.count - 1)]);
        }
      });
}

void ForwardPass::run_mlp(const Layer& layer, int64_t index, const Piece& piece) {
  const int64_t width = config_.hidden;
  float* delta = delta_.data() + piece.first * width;
  const auto step = [&] {
    if (layer.router) return run_experts(layer, index, piece.worker);
    run_expert(layer.experts.front(), normed_.data() + piece.first * width, piece.first, piece.count,
               piece.worker, delta);
  };
  step();
  check_.compare("MLP", index, delta, piece.count * width, step);
}

// Tokens [first, first + tokens) of the pass, or of those that chose an expert, at x; a piece at a time, so
// that the wide middle stays in the cache.
void ForwardPass::run_expert(const Mlp& mlp, const float* x, int64_t first, int64_t tokens, Worker& worker,
                             float* out) {
  const int64_t width = mlp.down.inputs(), hidden = config_.hidden;
  const auto function =
      config_.activation == Activation::Silu ? ops::GateFunction::Silu : ops::GateFunction::GeluTanh;
  const int64_t most = kMostPiece * worker.scratch.threads;
  worker.gate_up.resize(static_cast<size_t>(std::min(tokens, most) * 2 * width));
  for (int64_t at = 0; at < tokens; at += most) {
    const int64_t count = std::min(most, tokens - at);
    mlp.gate_up.run({x + at * hidden, hidden, {}, first + at}, count, pool_, worker.scratch,
                    worker.gate_up.data(), 2 * width, Operator::GateUp);
    mlp.down.run({worker.gate_up.data(), 2 * width, function, first + at}, count, pool_, worker.scratch,
                 out + at * hidden, hidden, Operator::Down);
  }
}

// Experts in index order, each over the tokens that chose it, so that a token's sum has one order.
void ForwardPass::run_experts(const Layer& layer, int64_t index, Worker& worker) {
  const int64_t width = config_.hidden;
  router_logits_.resize(static_cast<size_t>(rows_ * config_.moe.experts));
  ops::dense_matmul(*layer.router, normed_.data(), rows_, width, pool_, router_logits_.data(),
                    config_.moe.experts);
  const ExpertRouting routing = route_to_experts({router_logits_.data(), router_logits_.size()}, config_.moe,
                                                 fmt::format("layer {}", index));
  std::fill_n(delta_.data(), rows_ * width, 0.0f);
  OperatorClock& clock = worker.scratch.clock;
  clock.lap(Operator::Experts);
  for (size_t expert = 0; expert < layer.experts.size(); ++expert) {
    const std::vector<RoutedToken>& tokens = routing[expert];
    if (tokens.empty()) continue;
    expert_in_.resize(tokens.size() * static_cast<size_t>(width));
    expert_out_.resize(tokens.size() * static_cast<size_t>(width));
    for (size_t t = 0; t < tokens.size(); ++t)
      std::copy_n(normed_.data() + tokens[t].row * width, width,
                  expert_in_.data() + static_cast<int64_t>(t) * width);
    clock.lap(Operator::Experts);
    run_expert(layer.experts[expert], expert_in_.data(), 0, std::ssize(tokens), worker, expert_out_.data());
    for (size_t t = 0; t < tokens.size(); ++t) {
      const float* from = expert_out_.data() + static_cast<int64_t>(t) * width;
      float* to = delta_.data() + tokens[t].row * width;
      for (int64_t i = 0; i < width; ++i) to[i] += tokens[t].weight * from[i];
    }
    clock.lap(Operator::Experts);
  }
}

}  // namespace quatrain
