// The one number format of weights and activations (docs/format.md), shared by files, quantisers and kernels.
#pragma once

#include <cstdint>
#include <vector>

namespace quatrain {

inline constexpr int64_t kResidualRows = 16;  // output rows of one residual block

/// A weight matrix [rows, columns] of 8-bit codes c = 16 * hi + lo, weight = scale * c / 16 (docs/format.md).
/// Exactly as it lies in the artifact; nothing depends on a CPU or GPU layout.
struct NibblePlanes {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t weight_group = 0;      // columns that share a scale; 0: the whole row
  int64_t residual_block = 128;  // columns of a residual block; the last of a row may be narrower
  std::vector<uint8_t>
      hi;  // [rows, ceil(columns / 2)]: column 2k in the low half of byte k, two's complement
  std::vector<float> scale;             // [rows, groups()]; FP16-representable when weight_group > 0
  std::vector<int32_t> residual_index;  // [B] ascending row-major numbers of the blocks that have a lo nibble
  std::vector<uint8_t> lo;  // [B, 16, residual_block / 2]; rows and columns past the edge are zero
  std::vector<float> bias;  // [rows] or empty

  int64_t groups() const { return weight_group == 0 ? 1 : (columns + weight_group - 1) / weight_group; }
  int64_t block_rows() const { return (rows + kResidualRows - 1) / kResidualRows; }
  int64_t block_columns() const { return (columns + residual_block - 1) / residual_block; }
  /// The code of one weight; slow, for checks and small reads.
  int code(int64_t row, int64_t column) const;
  /// One row as FP32 weights.
  void dequantize_row(int64_t row, float* out) const;
};

/// How a linear's input becomes codes: unsigned q, scale s, zero z per (token, group), x = s (q - z).
struct ActivationPolicy {
  int bits = 16;      // 4, 8, or 16 for unquantised
  int64_t group = 0;  // columns; 0: the whole token
  bool symmetric = false;
  bool operator==(const ActivationPolicy&) const = default;
};

/// s of an all-zero group is 1; elsewhere s >= max|x| / 32767, so that z fits int16, and s >= FLT_MIN.
struct QuantizedGroup {
  float scale = 1;
  int32_t zero = 0;
};

/// Groups wider than this force zero into their range, so that q - z stays within a byte and sums within
/// INT32.
inline constexpr int64_t kWidestFreeGroup = 256;

/// The scale and zero of one group: the definition that every backend reproduces bit for bit (IEEE FP32
/// division, round half to even, no contraction). Asymmetric: s = (max - min) / (2^b - 1) with the true
/// extremes (max / (2^b - 1) - min / (2^b - 1) where the difference overflows), z = rint(-min / s); groups
/// wider than 256 force zero into the range. Symmetric: s = max|x| / (2^(b-1) - 1), z = 2^(b-1). `count` >= 1
/// values; the caller has checked that they are finite. `group`: the nominal width of a group.
QuantizedGroup quantize_group(const float* x, int64_t count, int bits, bool symmetric, int64_t group);

/// As quantize_group, from the group's extremes.
QuantizedGroup quantization_of_range(float low, float high, int bits, bool symmetric, int64_t group);

/// q = clamp(rint(x / s) + z, 0, 2^b - 1), the sum in FP32 (exact: both are below 2^16 within the group).
uint8_t quantize_value(float x, QuantizedGroup group, int bits);

}  // namespace quatrain
