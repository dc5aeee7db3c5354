// The product of one weight panel (two vectors of rows) with a few tokens, over cpu/vec.h.
#pragma once

#include "ops/cpu/dense_matmul.h"
#include "ops/cpu/vec.h"

namespace quatrain::ops::QUATRAIN_VEC_ISA {

// Two vectors a token, two of weights and a broadcast fit the registers: 32 of AVX-512, 16 elsewhere.
inline constexpr int kDenseTokens = kLanes == 16 ? 12 : kLanes == 8 ? 6 : 4;
inline constexpr int64_t kDensePanel = 2 * kLanes;

template <WeightType Type>
inline void load_panel_column(const void* panel, int64_t k, Vec& a, Vec& b) {
  if constexpr (Type == WeightType::F32) {
    const float* p = static_cast<const float*>(panel) + k * kDensePanel;
    a = load(p);
    b = load(p + kLanes);
  } else if constexpr (Type == WeightType::BF16) {
    load_bf16_pairs(static_cast<const uint16_t*>(panel) + k * kDensePanel, a, b);
  } else {
    const uint16_t* p = static_cast<const uint16_t*>(panel) + k * kDensePanel;
    a = load_f16(p);
    b = load_f16(p + kLanes);
  }
}

template <WeightType Type, int Tokens>
void dense_panel(const void* panel, int64_t columns, const float* x, const float* bias, int64_t valid,
                 float* y, int64_t y_stride) {
  Vec sum[Tokens][2];
  for (int t = 0; t < Tokens; ++t) sum[t][0] = sum[t][1] = zero();
  for (int64_t k = 0; k < columns; ++k, x += Tokens) {
    Vec a, b;
    load_panel_column<Type>(panel, k, a, b);
#pragma GCC unroll 16
    for (int t = 0; t < Tokens; ++t) {
      const Vec value = broadcast(x[t]);
      sum[t][0] = fma(value, a, sum[t][0]);
      sum[t][1] = fma(value, b, sum[t][1]);
    }
  }
  for (int t = 0; t < Tokens; ++t)
    for (int half = 0; half < 2; ++half) {
      const Vec result = add(sum[t][half], load(bias + half * kLanes));
      float* out = y + t * y_stride + half * kLanes;
      const int64_t left = valid - half * kLanes;
      if (left >= kLanes)
        store(out, result);
      else if (left > 0)
        store_first(out, result, left);
    }
}

template <WeightType Type, int Tokens = kDenseTokens>
void dense_tokens(const void* panel, int64_t columns, const float* x, int64_t tokens, const float* bias,
                  int64_t valid, float* y, int64_t y_stride) {
  if (tokens == Tokens) return dense_panel<Type, Tokens>(panel, columns, x, bias, valid, y, y_stride);
  if constexpr (Tokens > 1)
    dense_tokens<Type, Tokens - 1>(panel, columns, x, tokens, bias, valid, y, y_stride);
}

inline void dense_run(WeightType type, const void* panel, int64_t columns, const float* x, int64_t tokens,
                      const float* bias, int64_t valid, float* y, int64_t y_stride) {
  switch (type) {
    case WeightType::F32:
      return dense_tokens<WeightType::F32>(panel, columns, x, tokens, bias, valid, y, y_stride);
    case WeightType::BF16:
      return dense_tokens<WeightType::BF16>(panel, columns, x, tokens, bias, valid, y, y_stride);
    case WeightType::F16:
      return dense_tokens<WeightType::F16>(panel, columns, x, tokens, bias, valid, y, y_stride);
  }
}

}  // namespace quatrain::ops::QUATRAIN_VEC_ISA
