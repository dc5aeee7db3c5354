// The packed form of a nibble-plane matrix on x86 and the kernels that read it.
//
// Columns are cut into units (the finest of weight group, activation group and residual block), each padded
// with zeros to a multiple of 8; rows into panels of 32, two halves of 16. Four streams, each read from its
// start to its end, since a stream with gaps defeats the prefetcher:
//   dense     panel, unit, 8-column step, half: 64 bytes, byte 4 r + j = hi[r, j] << 4 | hi[r, 4 + j] & 15,
//             so that x & 0xF0 and (x << 4) & 0xF0 are 16 hi as signed bytes for columns 0..3 and 4..7;
//   residual  panel, unit, step, half (present ones only): 64 bytes, byte 4 r + j = lo[r, j] | lo[r, 4 + j]
//   << 4;
//   sums      panel, group: S of 32 rows; a group is the finest of weight and activation group;
//   scales    panel, weight group: FP16 of 32 rows.
//
// FP32 arithmetic, the same on every instruction set, per row and token, groups in index order:
//   t = RN(P - z S), the difference in INT32;  acc = fma(s, t, acc) or, with group scales w, acc = fma(s,
//   RN(t w), acc); y = fma(acc, factor, bias), factor = scale / 16 or 1 / 16.
// Where several weight groups share a token's one scale and zero, a group costs one multiplication a row and
// token instead of three, which would take the products' place in the pipes:
//   acc = RN(-z W);  acc = fma(w, RN(P), acc);  y = fma(s / 16, acc, bias),  W = RN(sum over groups of w S).
// Only in rows wider than 256, whose zeros lie in [0, 255]: z W is then no larger than the terms of acc.
#pragma once

#include <cstdint>

namespace quatrain::ops {

inline constexpr int kPanelRows = 32;
inline constexpr int kHalfRows = 16;
inline constexpr int kStepColumns = 8;
inline constexpr int kStepBytes = 128;  // of the dense stream, both halves
inline constexpr int kHalfBytes = 64;

/// A view of the packed streams.
struct NibblePanels {
  int64_t rows = 0;
  int64_t panels = 0;
  int64_t units = 0;       // of a row
  int64_t steps = 0;       // of a unit
  int64_t last_steps = 0;  // of the last unit
  int64_t units_per_group = 0;
  int64_t groups = 0;
  int64_t groups_per_scale = 0;
  int64_t scale_groups = 0;   // 0: one scale a row, within `factor`
  bool has_residual = false;  // some unit of some panel
  /// Groups wider than 256 columns, whose sums S need INT32.
  bool wide = false;
  const uint8_t* dense = nullptr;
  const uint8_t* flags = nullptr;  // [panels, units]: bit h set where half h has a residual
  const uint8_t* residual = nullptr;
  const int64_t* residual_offset = nullptr;  // [panels]: bytes
  const int16_t* sums = nullptr;             // [panels, groups, 32] unless wide
  const int32_t* wide_sums = nullptr;        // [panels, groups, 32] if wide
  const float* row_sums = nullptr;           // [panels * 32]: W, in place of sums; or nullptr
  const uint16_t* group_scale = nullptr;     // [panels, scale_groups, 32] FP16
  const float* factor = nullptr;             // [panels * 32]
  const float* bias = nullptr;               // [panels * 32]

  int64_t total_steps() const { return (units - 1) * steps + last_steps; }
};

/// The residual of one unit: where the lo nibbles of each half begin, and the bytes from step to step. A half
/// without them reads the same 64 zeros at every step.
struct NibbleResidual {
  const uint8_t* lo[2];
  int64_t advance[2];
};

alignas(64) inline constexpr uint8_t kNoResidual[kHalfBytes] = {};

/// The residual of a unit with these flags, at `residual`, which moves on to the next unit's.
inline __attribute__((always_inline)) NibbleResidual residual_of_unit(const uint8_t*& residual, int flags,
                                                                      int64_t steps) {
  const int64_t first = flags & 1, both = first + (flags >> 1);
  NibbleResidual unit{
      {first ? residual : kNoResidual, flags & 2 ? residual + first * kHalfBytes : kNoResidual},
      {first * both * kHalfBytes, (flags >> 1) * both * kHalfBytes}};
  residual += both * steps * kHalfBytes;
  return unit;
}

/// Fetches what a stream of weights from memory, `advance` bytes a step, needs later: a step takes tens of
/// instructions, so out-of-order execution alone looks too short a way ahead. Into the second-level cache
/// first, which has more requests under way than the first: on an Emerald Rapids a vector so meets 0.93 of a
/// plain read's rate, 0.85 when all goes into the first, 0.66 without. 4 KB were the best of 1 to 32 on a
/// Zen 5.
inline __attribute__((always_inline)) void prefetch_stream(const uint8_t* data, int64_t advance) {
  constexpr int64_t kMemory = 4096 / kStepBytes, kCache = 1024 / kStepBytes;  // steps
  __builtin_prefetch(data + advance * kMemory, 0, 2);
  __builtin_prefetch(data + advance * kCache, 0, 3);
}

inline constexpr int64_t kBlockTokens = 8;

/// Tokens in blocks of kBlockTokens, the last of which may have fewer. A block's codes lie step by step,
/// [total_steps][its tokens][8 columns], and so do scale and -zero of the finest groups, [groups][its
/// tokens]: a kernel then finds all tokens at constant distances.
struct NibbleTokens {
  int64_t tokens = 0;
  const uint8_t* codes = nullptr;
  int64_t stride = 0;  // bytes of one token: 8 total_steps
  const float* scale = nullptr;
  const int32_t* negative_zero = nullptr;  // -z, z in [-32767, 32767]

  int64_t block_tokens(int64_t first) const {
    return tokens - first < kBlockTokens ? tokens - first : kBlockTokens;
  }
};

/// Where results go: y [tokens, rows] `stride` floats apart, or where sums is set the P of every group
/// instead, [tokens, rows, groups].
struct NibbleResults {
  float* y = nullptr;
  int64_t stride = 0;
  int32_t* sums = nullptr;
  bool beyond_cache = false;  // y is too large to be found in the cache by who reads it
};

/// Computes panels [begin, end) for all tokens.
using NibbleKernel = void (*)(const NibblePanels& weights, const NibbleTokens& x, int64_t begin, int64_t end,
                              const NibbleResults& out);

void nibble_panels_generic(const NibblePanels&, const NibbleTokens&, int64_t, int64_t, const NibbleResults&);
void nibble_panels_avx2(const NibblePanels&, const NibbleTokens&, int64_t, int64_t, const NibbleResults&);
void nibble_panels_avxvnni(const NibblePanels&, const NibbleTokens&, int64_t, int64_t, const NibbleResults&);
void nibble_panels_avx512vnni(const NibblePanels&, const NibbleTokens&, int64_t, int64_t,
                              const NibbleResults&);

}  // namespace quatrain::ops
