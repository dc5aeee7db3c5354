#include "quant/reference/operations.h"

#include <algorithm>
#include <cfloat>
#include <limits>
#include <vector>

namespace quatrain::operations {
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
                     int64_t window, int64_t sequences) {
  const int64_t tokens = queries.size(0) / sequences, kv_heads = keys.size(1), dim = queries.size(2);
  const int64_t shared = queries.size(1) / kv_heads, batch = sequences * kv_heads;
  const torch::Tensor grouped = queries.reshape({sequences, tokens, kv_heads, shared, dim});
  const auto by_head = [&](const torch::Tensor& x, torch::IntArrayRef order) {
    return x.reshape({sequences, tokens, kv_heads, dim}).permute(order).flatten(0, 1);
  };
  const torch::Tensor k_heads = by_head(keys, {0, 2, 3, 1}), v_heads = by_head(values, {0, 2, 1, 3});
  std::vector<torch::Tensor> parts;
  for (int64_t begin = 0; begin < tokens; begin += kQueryChunk) {
    const int64_t end = std::min(begin + kQueryChunk, tokens), count = end - begin;
    const int64_t first = window > 0 ? std::max<int64_t>(0, begin - window + 1) : 0;
    const auto whole = torch::TensorOptions(torch::kLong).device(queries.device());
    const torch::Tensor position = torch::arange(begin, end, whole).unsqueeze(1),
                        key = torch::arange(first, end, whole).unsqueeze(0);
    torch::Tensor hidden = key > position;
    if (window > 0) hidden = hidden.logical_or(key <= position - window);
    const torch::Tensor part =
        grouped.slice(1, begin, end).permute({0, 2, 3, 1, 4}).reshape({batch, shared * count, dim});
    const torch::Tensor scores = torch::bmm(part, k_heads.slice(2, first, end))
                                     .reshape({batch, shared, count, end - first})
                                     .masked_fill(hidden, -std::numeric_limits<float>::infinity());
    const torch::Tensor share = torch::softmax(scores, -1).reshape({batch, shared * count, end - first});
    parts.push_back(torch::bmm(share, v_heads.slice(1, first, end))
                        .reshape({sequences, kv_heads, shared, count, dim})
                        .permute({0, 3, 1, 2, 4})
                        .reshape({sequences, count, kv_heads * shared * dim}));
  }
  return torch::cat(parts, 1).flatten(0, 1);
}

torch::Tensor quantize_rows(const torch::Tensor& x, int64_t group, const GroupRule& rule) {
  const int64_t rows = x.size(0), width = x.size(1), groups = (width + group - 1) / group;
  // Divisors are tensors: by a number, GPUs multiply with its rounded inverse.
  const auto number = [&](double value) { return torch::full({1}, value, x.options()); };
  // The last column once more changes no range.
  const torch::Tensor whole =
      groups * group == width
          ? x
          : torch::cat({x, x.slice(1, width - 1).expand({rows, groups * group - width})}, 1);
  const torch::Tensor values = whole.reshape({rows, groups, group});
  torch::Tensor low = values.amin(-1, true), high = values.amax(-1, true);
  const torch::Tensor magnitude = torch::maximum(low.abs(), high.abs());
  const int codes = (1 << rule.bits) - 1, middle = 1 << (rule.bits - 1);
  torch::Tensor scale;
  if (rule.symmetric) {
    scale = magnitude / number(middle - 1);
  } else {
    if (rule.force_zero) {
      low = low.clamp_max(0);
      high = high.clamp_min(0);
    }
    scale = (high - low) / number(codes);
  }
  scale = torch::maximum(scale, (magnitude / number(32767)).clamp_min(FLT_MIN));
  if (rule.half_scale) scale = scale.to(torch::kHalf).to(torch::kFloat).clamp_min(0x1p-24);
  const torch::Tensor zero =
      rule.symmetric ? torch::full_like(scale, middle) : torch::round(low.neg() / scale);
  const torch::Tensor code = (torch::round(values / scale) + zero).clamp(0, codes);
  return (scale * (code - zero)).reshape({rows, groups * group}).slice(1, 0, width).contiguous();
}

torch::Tensor straight_through(const torch::Tensor& x, const torch::Tensor& quantized) {
  return x + (quantized - x).detach();
}

}  // namespace quatrain::operations
