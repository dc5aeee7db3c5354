#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/half.h"
#include "ops/cpu/nibble_panels.h"

namespace quatrain::ops {
namespace {

// acc[r] += the products of one 64-byte vector (16 rows, 8 columns).
void add_half_step(const uint8_t* dense, const uint8_t* residual, const uint8_t* codes, int32_t* acc) {
  for (int r = 0; r < kHalfRows; ++r) {
    int32_t sum = 0;
    for (int j = 0; j < 4; ++j) {
      const uint8_t x = dense[4 * r + j];
      const uint8_t l = residual[4 * r + j];
      const auto first = static_cast<int8_t>((x & 0xF0) | (l & 0x0F));
      const auto second = static_cast<int8_t>(static_cast<uint8_t>(x << 4) | (l >> 4));
      sum += codes[j] * first + codes[4 + j] * second;
    }
    acc[r] += sum;
  }
}

void panel_of_token(const NibblePanels& w, int64_t panel, const NibbleTokens& x, int64_t token,
                    const NibbleResults& out) {
  const int64_t first = token / kBlockTokens * kBlockTokens;
  const int64_t block = x.block_tokens(first), in_block = token - first;
  const uint8_t* dense = w.dense + panel * w.total_steps() * kStepBytes;
  const uint8_t* residual = w.residual + w.residual_offset[panel];
  const uint8_t* flags = w.flags + panel * w.units;
  const uint8_t* codes = x.codes + first * x.stride + in_block * kStepColumns;
  const int64_t rows = std::min<int64_t>(kPanelRows, w.rows - panel * kPanelRows);
  float total[kPanelRows] = {};
  const float* row_sums = w.row_sums != nullptr ? w.row_sums + panel * kPanelRows : nullptr;
  if (row_sums != nullptr)
    for (int r = 0; r < kPanelRows; ++r)
      total[r] = static_cast<float>(x.negative_zero[first * w.groups + in_block]) * row_sums[r];
  for (int64_t g = 0; g < w.groups; ++g) {
    int32_t acc[kPanelRows] = {};
    const int64_t last_unit = std::min((g + 1) * w.units_per_group, w.units);
    for (int64_t u = g * w.units_per_group; u < last_unit; ++u) {
      const int64_t steps = u + 1 < w.units ? w.steps : w.last_steps;
      const NibbleResidual lo = residual_of_unit(residual, flags[u], steps);
      for (int64_t s = 0; s < steps; ++s, dense += kStepBytes, codes += block * kStepColumns)
        for (int half = 0; half < 2; ++half)
          add_half_step(dense + half * kHalfBytes, lo.lo[half] + s * lo.advance[half], codes,
                        acc + half * kHalfRows);
    }
    if (out.sums != nullptr) {
      for (int64_t r = 0; r < rows; ++r)
        out.sums[(token * w.rows + panel * kPanelRows + r) * w.groups + g] = acc[r];
      continue;
    }
    const int64_t of_group = first * w.groups + g * block + in_block;
    const float s = x.scale[of_group];
    const int32_t negative_zero = x.negative_zero[of_group];
    const uint16_t* scale =
        w.scale_groups > 0 ? w.group_scale + (panel * w.scale_groups + g / w.groups_per_scale) * kPanelRows
                           : nullptr;
    if (row_sums != nullptr) {
      for (int r = 0; r < kPanelRows; ++r)
        total[r] = std::fma(fp16_to_float(scale[r]), static_cast<float>(acc[r]), total[r]);
      continue;
    }
    for (int r = 0; r < kPanelRows; ++r) {
      const int64_t at = (panel * w.groups + g) * kPanelRows + r;
      const int32_t sum = w.wide ? w.wide_sums[at] : w.sums[at];
      float term = static_cast<float>(acc[r] + negative_zero * sum);  // below 2^31: see nibble_pack.cpp
      if (scale != nullptr) term *= fp16_to_float(scale[r]);
      total[r] = std::fma(s, term, total[r]);
    }
  }
  if (out.sums != nullptr) return;
  float* y = out.y + token * out.stride + panel * kPanelRows;
  const float of_token = x.scale[first * w.groups + in_block] * 0.0625f;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t row = panel * kPanelRows + r;
    y[r] = std::fma(total[r], row_sums != nullptr ? of_token : w.factor[row], w.bias[row]);
  }
}

}  // namespace

void nibble_panels_generic(const NibblePanels& weights, const NibbleTokens& x, int64_t begin, int64_t end,
                           const NibbleResults& out) {
  for (int64_t panel = begin; panel < end; ++panel)
    for (int64_t token = 0; token < x.tokens; ++token) panel_of_token(weights, panel, x, token, out);
}

}  // namespace quatrain::ops
