#include "base/number_format.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

namespace quatrain {
namespace {

// Sign-extends one nibble.
int signed_nibble(int nibble) {
  return (nibble ^ 8) - 8;
}

int hi_nibble(const NibblePlanes& planes, int64_t row, int64_t column) {
  const uint8_t byte = planes.hi[static_cast<size_t>(row * ((planes.columns + 1) / 2) + column / 2)];
  return signed_nibble(column % 2 == 0 ? byte & 15 : byte >> 4);
}

}  // namespace

int NibblePlanes::code(int64_t row, int64_t column) const {
  const int hi16 = 16 * hi_nibble(*this, row, column);
  const auto block = static_cast<int32_t>(row / kResidualRows * block_columns() + column / residual_block);
  const auto found = std::lower_bound(residual_index.begin(), residual_index.end(), block);
  if (found == residual_index.end() || *found != block) return hi16;
  const int64_t in_block = column % residual_block;
  const int64_t offset =
      ((found - residual_index.begin()) * kResidualRows + row % kResidualRows) * ((residual_block + 1) / 2);
  const uint8_t byte = lo[static_cast<size_t>(offset + in_block / 2)];
  return hi16 + (in_block % 2 == 0 ? byte & 15 : byte >> 4);
}

void NibblePlanes::dequantize_row(int64_t row, float* out) const {
  const float* row_scale = scale.data() + row * groups();
  const int64_t group = weight_group == 0 ? columns : weight_group;
  for (int64_t column = 0; column < columns; ++column)
    out[column] = row_scale[column / group] * static_cast<float>(code(row, column)) * 0.0625f;
}

QuantizedGroup quantize_group(const float* x, int64_t count, int bits, bool symmetric, int64_t group) {
  float low = x[0], high = x[0];
  for (int64_t i = 1; i < count; ++i) {
    low = std::min(low, x[i]);
    high = std::max(high, x[i]);
  }
  const float magnitude = std::max(std::fabs(low), std::fabs(high));
  if (magnitude == 0) return {1.0f, 0};
  const float floor = std::max(magnitude / 32767.0f, FLT_MIN);
  if (symmetric) {
    const int levels = (1 << (bits - 1)) - 1;
    return {std::max(magnitude / static_cast<float>(levels), floor), levels + 1};
  }
  if (group > 256) {
    low = std::min(low, 0.0f);
    high = std::max(high, 0.0f);
  }
  const int levels = (1 << bits) - 1;
  const float scale = std::max((high - low) / static_cast<float>(levels), floor);
  return {scale, static_cast<int32_t>(std::rint(-low / scale))};
}

uint8_t quantize_value(float x, QuantizedGroup group, int bits) {
  const int32_t code = static_cast<int32_t>(std::rint(x / group.scale)) + group.zero;
  return static_cast<uint8_t>(std::clamp(code, 0, (1 << bits) - 1));
}

}  // namespace quatrain
