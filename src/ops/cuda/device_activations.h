// Quantised activations in GPU memory: what the quantisers write and the zipper GEMM reads.
#pragma once

#include <cuda_runtime.h>

#include "ops/cuda/device_buffer.h"

namespace quatrain::ops {

/// x[t, k] = scale * (code - zero) of (t, k / group), the (q, s, z) of docs/format.md with both q and z
/// shifted so that the code is a signed byte: code = q - shift, zero = z - shift (shift_of below). 4-bit
/// groups whose z is within [-112, 127], nearly all, get the zero 0: their z S costs nothing in the product.
///
/// Codes lie one a byte, 4-bit ones too: wgmma's B operand cannot be widened between the copy engine and the
/// tensor core. GPUs with 4-bit tensor instructions read them packed.
struct DeviceActivations {
  DeviceActivations() = default;
  /// Room for `tokens` rows of `width` values in groups of `group` columns (0: the whole row).
  DeviceActivations(int64_t tokens, int64_t width, int64_t group);

  int64_t tokens = 0;    // rows in use; set it before a call, up to capacity
  int64_t capacity = 0;  // rows there is room for
  int64_t width = 0;
  int64_t group = 0;
  int64_t groups = 0;
  int64_t stride = 0;          // bytes of a row of codes: width rounded up to 128, the tail zero
  int64_t token_stride = 0;    // capacity rounded up to 128
  DeviceBuffer<int8_t> codes;  // [capacity, stride]
  DeviceBuffer<float> scale;   // [groups, token_stride]
  DeviceBuffer<int32_t> zero;  // [groups, token_stride]

  /// Makes room for 4-bit codes two a byte; the constructor does where the GPU multiplies them so.
  void make_room_for_nibbles();
  bool packed = false;                // pack_nibbles() has run on these codes; whoever writes codes clears it
  int nibble_unit = 0;                // columns of a zero: 32, 64 or 128
  DeviceBuffer<uint32_t> nibbles;     // [stride / 128, token_stride, 16], in the order of pack_nibbles()
  DeviceBuffer<int32_t> nibble_zero;  // [stride / nibble_unit, token_stride]
};

/// The shift of a group with zero z: 128 for 8 bits; for 4 bits z itself where q - z fits a signed byte.
__host__ __device__ inline int shift_of(int zero, int bits) {
  if (bits == 8) return 128;
  return zero < -112 ? -112 : zero > 127 ? 127 : zero;
}

}  // namespace quatrain::ops
