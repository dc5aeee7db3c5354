#include "quant/reference/differentiable.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace quatrain::differentiable {
namespace {

constexpr int64_t kQueryChunk = 256;  // bounds the scores that a graph keeps at once

}  // namespace

torch::Tensor rms_norm(const torch::Tensor& x, const torch::Tensor& gain, double epsilon) {
  return x * torch::rsqrt(x.square().mean(-1, true) + epsilon) * gain;
}

torch::Tensor rotate(const torch::Tensor& x, const torch::Tensor& cosine, const torch::Tensor& sine) {
  const int64_t half = cosine.size(1);
  const torch::Tensor c = cosine.unsqueeze(1), s = sine.unsqueeze(1);
  const torch::Tensor first = x.slice(2, 0, half), second = x.slice(2, half, 2 * half);
  return torch::cat({first * c - second * s, second * c + first * s, x.slice(2, 2 * half)}, 2);
}

torch::Tensor attend(const torch::Tensor& queries, const torch::Tensor& keys, const torch::Tensor& values,
                     int64_t window) {
  const int64_t tokens = queries.size(0), kv_heads = keys.size(1), dim = queries.size(2);
  const int64_t shared = queries.size(1) / kv_heads;
  const torch::Tensor grouped = queries.reshape({tokens, kv_heads, shared, dim});
  const torch::Tensor k_heads = keys.permute({1, 2, 0}), v_heads = values.permute({1, 0, 2});
  std::vector<torch::Tensor> parts;
  for (int64_t begin = 0; begin < tokens; begin += kQueryChunk) {
    const int64_t end = std::min(begin + kQueryChunk, tokens);
    const int64_t first = window > 0 ? std::max<int64_t>(0, begin - window + 1) : 0;
    const torch::Tensor position = torch::arange(begin, end).unsqueeze(1),
                        key = torch::arange(first, end).unsqueeze(0);
    torch::Tensor hidden = key > position;
    if (window > 0) hidden = hidden.logical_or(key <= position - window);
    const torch::Tensor part =
        grouped.slice(0, begin, end).permute({1, 2, 0, 3}).reshape({kv_heads, shared * (end - begin), dim});
    const torch::Tensor scores = torch::bmm(part, k_heads.slice(2, first, end))
                                     .reshape({kv_heads, shared, end - begin, end - first})
                                     .masked_fill(hidden, -std::numeric_limits<float>::infinity());
    const torch::Tensor share =
        torch::softmax(scores, -1).reshape({kv_heads, shared * (end - begin), end - first});
    parts.push_back(torch::bmm(share, v_heads.slice(1, first, end))
                        .reshape({kv_heads, shared, end - begin, dim})
                        .permute({2, 0, 1, 3})
                        .reshape({end - begin, kv_heads * shared * dim}));
  }
  return torch::cat(parts, 0);
}

torch::Tensor straight_through(const torch::Tensor& x, const torch::Tensor& quantized) {
  return x + (quantized - x).detach();
}

}  // namespace quatrain::differentiable
