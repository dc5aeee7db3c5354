// A weight matrix in the kernel layout of the zipper GEMM (docs/zipper.md), in GPU memory.
//
// Rows are cut into tiles of 128, columns into steps of 128, both padded with zero codes. One chunk a (tile,
// step) holds, contiguously, everything dense that the kernels read there: 8 strips of 16 rows, a warp's
// share of wgmma's A operand, each of
//   nibbles  [2 parts][32 lanes][16 bytes]: a lane's A fragments as 8 words. Word i becomes registers 2i and
//            2i + 1: byte b holds the hi nibble of register 2i's column b in its high half, that of register
//            2i + 1 in its low half.
//   scales   FP16  [128 / drain][16 rows]: only where weights have group scales, or drain < 128 (then ones,
//   so
//            that fewer kernels need compiling)
//   sums     int16 [128 / drain][16 rows]: S, the sum of the codes c over each `drain` columns
// Residual blocks are 16 rows x 128 columns, 1,024 bytes laid out like the nibbles, in the order (tile, step,
// strip); `blocks` says where a (tile, step) starts.
#pragma once

#include <cuda_runtime.h>

#include "base/number_format.h"
#include "ops/cuda/device_buffer.h"

namespace quatrain::ops {

inline constexpr int kTileRows = 128;
inline constexpr int kStepColumns = 128;
inline constexpr int kStrips = kTileRows / 16;
inline constexpr int kBlockBytes = 16 * kStepColumns / 2;  // nibbles of a strip, and a residual block

/// Bytes of a strip in a chunk.
__host__ __device__ constexpr int strip_bytes(int drain, bool group_scales) {
  return kBlockBytes + kStepColumns / drain * 32 * (group_scales ? 2 : 1);
}

class ZipperMatrix {
 public:
  /// Copies the planes to the GPU and repacks them there, for inputs quantised in groups of
  /// `activation_group` columns (0: whole token). Group sizes of 32, 64 or multiples of 128, or the whole
  /// row; others are an Error.
  ZipperMatrix(const NibblePlanes& planes, int64_t activation_group);

  int64_t rows = 0, columns = 0;
  int64_t tiles = 0, steps = 0;
  int64_t activation_group = 0;
  int drain = 128;            // columns between two drains of the integer accumulators: 32, 64 or 128
  bool group_scales = false;  // the chunks hold scales
  int chunk_bytes = 0;
  DeviceBuffer<uint8_t> chunks;    // [tiles, steps, chunk_bytes]
  DeviceBuffer<uint8_t> residual;  // [blocks, 1024]
  DeviceBuffer<uint32_t> blocks;   // [tiles, steps]: number of the first block << 8 | presence of 8 strips
  DeviceBuffer<float>
      row_scale;             // [tiles * 128]: scale / 16, or 1 / 16 beside group scales; zero past the edge
  DeviceBuffer<float> bias;  // [tiles * 128] or empty
  int64_t residual_blocks = 0;

  /// Bytes that one pass over the matrix reads.
  int64_t bytes() const {
    return static_cast<int64_t>(chunks.bytes() + residual.bytes() + blocks.bytes() + row_scale.bytes());
  }
};

}  // namespace quatrain::ops
