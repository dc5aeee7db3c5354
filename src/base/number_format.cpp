#include "base/number_format.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

namespace quatrain {
namespace {

int nibble(const uint8_t* bytes, int64_t column) {
  const uint8_t byte = bytes[column / 2];
  return column % 2 == 0 ? byte & 15 : byte >> 4;
}

int signed_nibble(const uint8_t* bytes, int64_t column) {
  return (nibble(bytes, column) ^ 8) - 8;
}

const uint8_t* hi_row(const NibblePlanes& planes, int64_t row) {
  return planes.hi.data() + row * ((planes.columns + 1) / 2);
}

// The lo nibbles of a row within one residual block, or null where the block has none.
const uint8_t* lo_row(const NibblePlanes& planes, int64_t row, int64_t block_column) {
  const auto block = row / kResidualRows * planes.block_columns() + block_column;
  const auto& index = planes.residual_index;
  const auto found = std::lower_bound(index.begin(), index.end(), block);
  if (found == index.end() || *found != block) return nullptr;
  return planes.lo.data() +
         ((found - index.begin()) * kResidualRows + row % kResidualRows) * ((planes.residual_block + 1) / 2);
}

}  // namespace

int NibblePlanes::code(int64_t row, int64_t column) const {
  const uint8_t* lo_bytes = lo_row(*this, row, column / residual_block);
  return 16 * signed_nibble(hi_row(*this, row), column) +
         (lo_bytes != nullptr ? nibble(lo_bytes, column % residual_block) : 0);
}

void NibblePlanes::dequantize_row(int64_t row, float* out) const {
  const float* row_scale = scale.data() + row * groups();
  const int64_t group = weight_group == 0 ? columns : weight_group;
  const uint8_t* hi_bytes = hi_row(*this, row);
  for (int64_t first = 0; first < columns; first += residual_block) {
    const uint8_t* lo_bytes = lo_row(*this, row, first / residual_block);
    const int64_t end = std::min(first + residual_block, columns);
    for (int64_t column = first; column < end; ++column) {
      const int lo_nibble = lo_bytes != nullptr ? nibble(lo_bytes, column - first) : 0;
      const int code = 16 * signed_nibble(hi_bytes, column) + lo_nibble;
      out[column] = row_scale[column / group] * static_cast<float>(code) * 0.0625f;
    }
  }
}

QuantizedGroup quantization_of_range(float low, float high, int bits, bool symmetric, int64_t group) {
  const float magnitude = std::max(std::fabs(low), std::fabs(high));
  if (magnitude == 0) return {1.0f, 0};
  const float floor = std::max(magnitude / 32767.0f, FLT_MIN);
  if (symmetric) {
    const int levels = (1 << (bits - 1)) - 1;
    return {std::max(magnitude / static_cast<float>(levels), floor), levels + 1};
  }
  if (group > kWidestFreeGroup) {
    low = std::min(low, 0.0f);
    high = std::max(high, 0.0f);
  }
  const auto levels = static_cast<float>((1 << bits) - 1);
  float step = (high - low) / levels;
  if (step > FLT_MAX) step = high / levels - low / levels;  // the range overflowed
  const float scale = std::max(step, floor);
  return {scale, static_cast<int32_t>(std::rint(-low / scale))};
}

QuantizedGroup quantize_group(const float* x, int64_t count, int bits, bool symmetric, int64_t group) {
  float low = x[0], high = x[0];
  for (int64_t i = 1; i < count; ++i) {
    low = std::min(low, x[i]);
    high = std::max(high, x[i]);
  }
  return quantization_of_range(low, high, bits, symmetric, group);
}

uint8_t quantize_value(float x, QuantizedGroup group, int bits) {
  const float code = std::rint(x / group.scale) + static_cast<float>(group.zero);
  const auto most = static_cast<float>((1 << bits) - 1);
  return static_cast<uint8_t>(code > 0 ? std::min(code, most) : 0.0f);
}

}  // namespace quatrain
