#include "ops/cuda/nibble_activations.h"

namespace quatrain::ops {
namespace {

constexpr int kWarps = 8;

// One warp a token and step of 128 columns. Word t of a token's 32-column block holds columns 4 t + b in the
// high and 16 + 4 t + b in the low half of byte b: what a lane has of both at once in the weights' fragments.
// The blocks' words t lie side by side, for one 16-byte load.
__global__ void __launch_bounds__(kWarps * 32)
    pack_kernel(const int8_t* codes, const int32_t* zero, int64_t stride, int64_t token_stride, int tokens,
                int width, int steps, int unit, int group, int groups, uint32_t* nibbles,
                int32_t* nibble_zero) {
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (item >= static_cast<int64_t>(tokens) * steps) return;
  const int lane = threadIdx.x % 32;
  const int step = static_cast<int>(item / tokens), token = static_cast<int>(item % tokens);
  const int column = step * 128 + lane * 4;
  const uint32_t bytes = *reinterpret_cast<const uint32_t*>(codes + token * stride + column);
  int code[4], least = 127;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    code[i] = static_cast<int8_t>(bytes >> (8 * i));
    if (column + i < width) least = min(least, code[i]);
  }
  for (int distance = 1; distance < unit / 4; distance *= 2)
    least = min(least, __shfl_xor_sync(~0u, least, distance));
  uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (column + i < width) word |= static_cast<uint32_t>(code[i] - least) << (8 * i);
  const uint32_t low = __shfl_down_sync(~0u, word, 4);
  const int block = lane / 8, t = lane % 8;
  if (t < 4) nibbles[(step * token_stride + token) * 16 + t * 4 + block] = word << 4 | low;
  if (column % unit == 0 && column < width)
    nibble_zero[column / unit * token_stride + token] =
        zero[min(column / group, groups - 1) * token_stride + token] - least;
}

}  // namespace

void pack_nibbles(DeviceActivations& x, cudaStream_t stream) {
  require(x.nibbles.size() > 0, "GPU activations: no room for nibbles was made");
  const auto steps = static_cast<int>(x.stride / 128);
  const int64_t items = x.tokens * steps;
  if (items > 0)
    pack_kernel<<<static_cast<unsigned>((items + kWarps - 1) / kWarps), kWarps * 32, 0, stream>>>(
        x.codes.data(), x.zero.data(), x.stride, x.token_stride, static_cast<int>(x.tokens),
        static_cast<int>(x.width), steps, x.nibble_unit, static_cast<int>(x.group),
        static_cast<int>(x.groups), x.nibbles.data(), x.nibble_zero.data());
  cuda_check(cudaGetLastError(), "packing nibbles");
  x.packed = true;
}

}  // namespace quatrain::ops
