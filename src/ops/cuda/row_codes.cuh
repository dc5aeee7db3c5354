// A row of values to codes, by one block: RMSNorm or gate, diagonal scale, Hadamard transform, groups.
// Kernels that only quantise and products that quantise their own input both do it here, so that their codes
// are the same bit for bit, however many threads share a row.
#pragma once

#include <cuda_bf16.h>

#include <bit>

#include "ops/cuda/device_activations.h"
#include "ops/cuda/group_quantizer.cuh"
#include "ops/cuda/ptx/bulk_copy.cuh"
#include "ops/cuda/quantize_rows.h"

namespace quatrain::ops {

enum class RowSource { Plain, RmsNorm, SiluMul };

// A thread holds kRowVector neighbouring columns at a time: a 16-byte load of BF16, and groups end at lanes.
inline constexpr int kRowVector = 8;
inline constexpr int kWarpColumns = 32 * kRowVector;
inline constexpr int kUsualGroup = 128;
inline constexpr int kRowStretches = 128;  // of a warp: rows of up to 32,768 columns

struct RowParams {
  const float* gain;
  float epsilon;
  int width, group, groups, bits, hadamard;
  int group_shift;  // column >> group_shift: its group
  bool symmetric, gelu;
  const float* add;
  float* sum;  // null: another block stores it
  unsigned long long* bad;
  int64_t stride;

  /// Is this a group's first column?
  __device__ bool opens(int column) const { return (column & (1u << group_shift) - 1) == 0; }
};

/// Of rows of `width` values in `groups` groups of `group`.
inline RowParams row_params(const RowOptions& options, int64_t width, int64_t group, int64_t groups) {
  return {options.gain,
          0.0f,
          static_cast<int>(width),
          static_cast<int>(group),
          static_cast<int>(groups),
          options.policy.bits,
          options.hadamard,
          groups == 1 ? 31 : std::countr_zero(static_cast<unsigned>(group)),
          options.policy.symmetric,
          options.gelu,
          options.add,
          options.sum,
          options.bad,
          width};
}

/// Scale and zero of one group's codes, as DeviceActivations has them.
struct StoredGroup {
  float scale;
  int zero;   // of the stored codes
  int shift;  // what they lie below the quantiser's
};

__device__ __forceinline__ void load_vector(const float* from, float (&to)[kRowVector]) {
  const auto* vectors = reinterpret_cast<const float4*>(from);
  const float4 a = vectors[0], b = vectors[1];
  to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w, to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
}
__device__ __forceinline__ void load_vector(const __nv_bfloat16* from, float (&to)[kRowVector]) {
  const uint4 v = *reinterpret_cast<const uint4*>(from);
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    to[2 * i] = __uint_as_float(words[i] << 16);
    to[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000u);
  }
}

// kRowVector values at a column; past the width they are zero. The fast path needs aligned rows; with
// kAligned they are, and the width is a multiple of kRowVector.
template <bool kAligned, typename T>
__device__ __forceinline__ void load(const T* row, int column, int width, bool aligned,
                                     float (&to)[kRowVector]) {
  if ((kAligned || aligned) && column + kRowVector <= width) return load_vector(row + column, to);
#pragma unroll
  for (int i = 0; i < kRowVector; ++i)
    to[i] = !kAligned && column + i < width ? static_cast<float>(row[column + i]) : 0.0f;
}

/// As load() takes them.
__device__ __forceinline__ void store_vector(float* to, int valid, bool aligned,
                                             const float (&from)[kRowVector]) {
  if (aligned) {
    auto* vectors = reinterpret_cast<float4*>(to);
    vectors[0] = make_float4(from[0], from[1], from[2], from[3]);
    vectors[1] = make_float4(from[4], from[5], from[6], from[7]);
    return;
  }
#pragma unroll
  for (int i = 0; i < kRowVector; ++i)
    if (i < valid) to[i] = from[i];
}

/// Brings the gains of `columns` columns into L1. They are weights: no kernel before this one writes them.
__device__ __forceinline__ void prefetch_gain(const RowParams& p, int first_column, int columns) {
  if (p.gain == nullptr) return;
  for (int column = first_column + static_cast<int>(threadIdx.x) * kRowVector;
       column < min(first_column + columns, p.width); column += static_cast<int>(blockDim.x) * kRowVector)
    ptx::prefetch_l1(p.gain + column);
}

template <typename Combine>
__device__ __forceinline__ float lane_reduce(float value, int lanes, Combine combine) {
  for (int distance = lanes / 2; distance > 0; distance /= 2)
    value = combine(value, __shfl_xor_sync(~0u, value, distance));
  return value;
}

/// The least and the most of `lanes` neighbouring lanes; one branch in place of a loop's where they are
/// kUsualLanes.
template <int kUsualLanes>
__device__ __forceinline__ void lane_extremes(float& low, float& high, int lanes) {
  const auto meet = [&](int distance) {
    low = fminf(low, __shfl_xor_sync(~0u, low, distance));
    high = fmaxf(high, __shfl_xor_sync(~0u, high, distance));
  };
  if (lanes == kUsualLanes) {
#pragma unroll
    for (int distance = kUsualLanes / 2; distance > 0; distance /= 2) meet(distance);
  } else {
    for (int distance = lanes / 2; distance > 0; distance /= 2) meet(distance);
  }
}

template <typename Combine>
__device__ float block_reduce(float value, float neutral, float* shared, Combine combine) {
  value = lane_reduce(value, 32, combine);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  return lane_reduce(threadIdx.x % 32 < blockDim.x / 32 ? shared[threadIdx.x % 32] : neutral, 32, combine);
}

/// The sum over a row of what threads hold of it, in an order that follows from the width alone: within
/// stretches of kWarpColumns, which a warp holds at a time, then over these. `shared`: kRowStretches floats.
template <int kPasses>
__device__ float row_sum(const float (&values)[kPasses], int width, float* shared) {
  const auto add = [](float a, float b) { return a + b; };
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  __syncthreads();
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    const float sum = lane_reduce(values[pass], 32, add);
    if (lane == 0) shared[pass * warps + warp] = sum;
  }
  __syncthreads();
  float sum = 0;
  for (int i = lane; i < (width + kWarpColumns - 1) / kWarpColumns; i += 32) sum += shared[i];
  return lane_reduce(sum, 32, add);
}

/// Butterflies of distance 1 ... order / 2, unnormalised, within a warp whose lanes hold kColumns
/// neighbouring columns each.
template <int kColumns>
__device__ __forceinline__ void warp_hadamard(float (&x)[kColumns], int order) {
#pragma unroll
  for (int distance = 1; distance < kColumns; distance *= 2)
#pragma unroll
    for (int i = 0; i < kColumns; ++i)
      if ((i & distance) == 0) {
        const float a = x[i], b = x[i | distance];
        x[i] = a + b;
        x[i | distance] = a - b;
      }
  for (int distance = kColumns; distance < min(order, 32 * kColumns); distance *= 2) {
    const float sign = threadIdx.x & (distance / kColumns) ? -1.0f : 1.0f;
#pragma unroll
    for (int i = 0; i < kColumns; ++i)
      x[i] = __fmaf_rn(sign, x[i], __shfl_xor_sync(~0u, x[i], distance / kColumns));
  }
}

/// The rest of a transform that is wider than a warp's columns, through `shared` (a row of floats).
template <int kPasses>
__device__ void block_hadamard(float (&x)[kPasses][kRowVector], int order, int width, float* shared) {
  for (int distance = kWarpColumns; distance < order; distance *= 2) {
    __syncthreads();
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int column = (pass * blockDim.x + threadIdx.x) * kRowVector;
      if (column < width)
#pragma unroll
        for (int i = 0; i < kRowVector; ++i) shared[column + i] = x[pass][i];
    }
    __syncthreads();
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int column = (pass * blockDim.x + threadIdx.x) * kRowVector;
      const bool upper = column & distance;
      if (column < width)
#pragma unroll
        for (int i = 0; i < kRowVector; ++i) {
          const float other = shared[(column + i) ^ distance];
          x[pass][i] = upper ? other - x[pass][i] : x[pass][i] + other;
        }
    }
  }
}

/// SiLU(gate) * up, or GELU's tanh form: g / 2 (1 + tanh(u)) = g / (1 + e^-2u), u = sqrt(2 / pi) (g +
/// 0.044715 g^3). Products are rounded by themselves: nothing after it may contract them.
__device__ __forceinline__ float gate_value(float gate, float up, bool gelu) {
  const float power = gelu ? -1.5957691216f * fmaf(0.044715f * gate * gate, gate, gate) : -gate;
  return __fmul_rn(__fdiv_rn(gate, __fadd_rn(1.0f, expf(power))), up);
}

__device__ __forceinline__ StoredGroup stored_group(float low, float high, const RowParams& p) {
  const DeviceGroup group =
      quantize_group_device(low, high, p.bits, p.symmetric, p.groups == 1 && p.group > 256);
  const int shift = shift_of(group.zero, p.bits);
  return {group.scale, group.zero - shift, shift};
}

/// kColumns codes, the first in the lowest byte; those from `valid` on are zero.
template <int kColumns>
__device__ __forceinline__ void pack_codes(const float (&x)[kColumns], int valid, const StoredGroup& stored,
                                           int bits, uint32_t (&words)[kColumns / 4]) {
  int codes[kColumns];
  rounded_quotients(x, stored.scale, group_reciprocal(stored.scale), codes);
  const int least = -stored.shift, most = (1 << bits) - 1 - stored.shift;
#pragma unroll
  for (int i = 0; i < kColumns / 4; ++i) {
    uint32_t code[4];
#pragma unroll
    for (int j = 0; j < 4; ++j)
      code[j] = static_cast<uint32_t>(min(max(codes[4 * i + j] + stored.zero, least), most));
    words[i] =
        __byte_perm(__byte_perm(code[0], code[1], 0x0040), __byte_perm(code[2], code[3], 0x0040), 0x5410);
  }
  if (valid >= kColumns) return;
#pragma unroll
  for (int i = 0; i < kColumns / 4; ++i) {
    const int bytes = min(max(valid - 4 * i, 0), 4);
    words[i] = bytes == 0 ? 0 : words[i] & ~0u >> 8 * (4 - bytes);
  }
}

/// Reports values of `x`, which begin at `column`, that are not finite (RowOptions::bad).
template <int kColumns>
__device__ __forceinline__ void report_bad(const float (&x)[kColumns], int64_t token, int column, int width,
                                           unsigned long long* bad) {
  if (bad == nullptr) return;
  float poison = 0;  // NaN where a value is not finite
#pragma unroll
  for (int i = 0; i < kColumns; ++i)
    if (column + i < width) poison = fmaf(x[i], 0.0f, poison);
  if (poison == 0) return;
#pragma unroll
  for (int i = 0; i < kColumns; ++i)
    if (column + i < width && !isfinite(x[i]))
      atomicMin(bad, static_cast<unsigned long long>(token * width + column + i));
}

/// The warp's values, four neighbouring columns a lane, to codes in groups of 32, 64 or 128: transform (up to
/// 128, or 0), report, group and codes. `active`: the lane's columns exist, as all of their group does. Calls
/// store(group, codes) in active lanes.
template <typename Store>
__device__ __forceinline__ void quad_codes(float (&x)[4], const RowParams& p, int64_t token, int column,
                                           bool active, const Store& store) {
  if (p.hadamard > 0) {
    warp_hadamard(x, p.hadamard);
    const float norm = rsqrtf(static_cast<float>(p.hadamard));
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = __fmul_rn(x[i], norm);
  }
  if (active) report_bad(x, token, column, p.width, p.bad);
  float low = fminf(fminf(x[0], x[1]), fminf(x[2], x[3]));
  float high = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
  lane_extremes<kUsualGroup / 4>(low, high, p.group / 4);
  if (!active) return;
  const StoredGroup group = stored_group(low, high, p);
  uint32_t codes[1];
  pack_codes(x, 4, group, p.bits, codes);
  store(group, codes[0]);
}

/// Row `token` of x, or the part of it that begins at `first_column` and that the block's threads hold in
/// kPasses vectors each. Stores by `store(column, group, opens, codes)`: eight codes at a column, of which a
/// group may be the first. `transform`: a row of floats where the transform is wider than kWarpColumns;
/// `reduced`: kRowStretches floats. All threads of the block call it. kAligned: all rows begin at multiples
/// of 16 bytes and hold a multiple of kRowVector columns; then `meanwhile()` runs while the row's loads are
/// on their way.
template <typename T, RowSource kSource, int kPasses, bool kAligned, typename Store, typename Meanwhile>
__device__ __forceinline__ void row_codes(const T* x, const RowParams& p, int64_t token, int first_column,
                                          float* transform, float* reduced, const Store& store,
                                          const Meanwhile& meanwhile) {
  const T* row = x + token * p.stride;
  const bool aligned = p.stride % kRowVector == 0 && (reinterpret_cast<uintptr_t>(x) & 15) == 0 &&
                       (kSource != RowSource::SiluMul || p.width % kRowVector == 0);
  const auto column_of = [&](int pass) {
    return first_column + static_cast<int>(pass * blockDim.x + threadIdx.x) * kRowVector;
  };
  float v[kPasses][kRowVector];
  float squares[kPasses];
  // All loads first costs registers, which pays only where something waits for them.
  float more[kAligned ? kPasses : 1][kRowVector];
  const auto load_pass = [&](int pass) {
    const int column = column_of(pass);
    auto& with = more[kAligned ? pass : 0];
    load<kAligned>(row, column, p.width, aligned, v[pass]);
    if constexpr (kSource == RowSource::SiluMul)
      load<kAligned>(row + p.width, column, p.width, aligned, with);
    if (kSource == RowSource::RmsNorm && p.add != nullptr)
      load<kAligned>(p.add + token * p.width, column, p.width, p.width % kRowVector == 0, with);
  };
  if constexpr (kAligned) {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) load_pass(pass);
    meanwhile();
  }
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    const int column = column_of(pass);
    if constexpr (!kAligned) load_pass(pass);
    const auto& with = more[kAligned ? pass : 0];
    if constexpr (kSource == RowSource::SiluMul) {
#pragma unroll
      for (int i = 0; i < kRowVector; ++i) v[pass][i] = gate_value(v[pass][i], with[i], p.gelu);
    }
    if (kSource == RowSource::RmsNorm && p.add != nullptr && column < p.width) {
#pragma unroll
      for (int i = 0; i < kRowVector; ++i) v[pass][i] += with[i];
      if (p.sum != nullptr)
        store_vector(p.sum + token * p.width + column, p.width - column, p.width % kRowVector == 0, v[pass]);
    }
    squares[pass] = 0;
#pragma unroll
    for (int i = 0; i < kRowVector; ++i) squares[pass] = fmaf(v[pass][i], v[pass][i], squares[pass]);
  }
  float factor = 1.0f;
  if constexpr (kSource == RowSource::RmsNorm) {
    const float sum = row_sum<kPasses>(squares, p.width, reduced);
    factor = rsqrtf(__fadd_rn(__fdiv_rn(sum, static_cast<float>(p.width)), p.epsilon));
    if (p.bad != nullptr && !isfinite(sum)) {
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass)
#pragma unroll
        for (int i = 0; i < kRowVector; ++i) {
          const int column = column_of(pass) + i;
          if (column < p.width && (column + 1 == p.width || !isfinite(v[pass][i])))
            atomicMin(p.bad, static_cast<unsigned long long>(token * p.width + column));
        }
    }
  }
  if (kSource == RowSource::RmsNorm || p.gain != nullptr) {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      float gain[kRowVector] = {1, 1, 1, 1, 1, 1, 1, 1};
      if (p.gain != nullptr) load<kAligned>(p.gain, column_of(pass), p.width, true, gain);
#pragma unroll
      for (int i = 0; i < kRowVector; ++i) v[pass][i] = __fmul_rn(__fmul_rn(v[pass][i], factor), gain[i]);
    }
  }
  if (p.hadamard > 0) {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) warp_hadamard(v[pass], p.hadamard);
    block_hadamard<kPasses>(v, p.hadamard, p.width, transform);
    const float norm = rsqrtf(static_cast<float>(p.hadamard));
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass)
#pragma unroll
      for (int i = 0; i < kRowVector; ++i) v[pass][i] = __fmul_rn(v[pass][i], norm);
  }

  const bool whole_row = p.groups == 1;
  const int lanes = min(32, p.group / kRowVector);  // of a group, where it is not the whole row
  const auto least = [](float a, float b) { return fminf(a, b); };
  const auto most = [](float a, float b) { return fmaxf(a, b); };
  const auto write = [&](const float(&values)[kRowVector], int column, const StoredGroup& group) {
    uint32_t codes[2];
    pack_codes(values, p.width - column, group, p.bits, codes);
    store(column, group, p.opens(column), make_uint2(codes[0], codes[1]));
  };
  float row_low = INFINITY, row_high = -INFINITY;
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    const int column = column_of(pass);
    float low = INFINITY, high = -INFINITY;
    if (column + kRowVector <= p.width) {
#pragma unroll
      for (int i = 0; i < kRowVector; ++i) {
        low = fminf(low, v[pass][i]);
        high = fmaxf(high, v[pass][i]);
      }
    } else if constexpr (!kAligned) {
#pragma unroll
      for (int i = 0; i < kRowVector; ++i) {
        if (column + i >= p.width) break;
        low = fminf(low, v[pass][i]);
        high = fmaxf(high, v[pass][i]);
      }
    }
    if constexpr (kSource != RowSource::RmsNorm) report_bad(v[pass], token, column, p.width, p.bad);
    row_low = fminf(row_low, low);
    row_high = fmaxf(row_high, high);
    if (whole_row) continue;
    lane_extremes<kUsualGroup / kRowVector>(low, high, lanes);
    if (column < p.width) write(v[pass], column, stored_group(low, high, p));
  }
  if (!whole_row) return;
  row_low = block_reduce(row_low, INFINITY, reduced, least);
  row_high = block_reduce(row_high, -INFINITY, reduced, most);
  const StoredGroup group = stored_group(row_low, row_high, p);
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass)
    if (column_of(pass) < p.width) write(v[pass], column_of(pass), group);
}

}  // namespace quatrain::ops
