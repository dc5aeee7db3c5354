#include "quant/weights/scales.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/half.h"
#include "base/isa_clones.h"

namespace quatrain {
namespace {

constexpr int kLargestClip = 100, kSmallestClip = 21;  // per cent
constexpr int kLanes = 16;      // partial sums, so that the compiler may use SIMD without reordering
constexpr int64_t kTile = 128;  // columns between two looks at the limit

// Half to even for |x| < 2^22; a clipped weight is at most 7 / 0.21 = 34 (4 bits) or 605 (8 bits) steps.
inline float round_even(float x) {
  return (x + 12582912.0f) - 12582912.0f;
}

// |e|^2.4 = a^2 (a^-0.2)^4 with a = e^2. The start (a line in the logarithm) is within 4 % of a^-0.2; a
// Newton step takes a relative error r to 3 r^2: three leave FP32 rounding only. e = 0 gives 0.
inline float power_2_4(float e) {
  const float a = e * e;
  const float start = 1278423859.0f - 0.2f * static_cast<float>(std::bit_cast<int32_t>(a));
  float y = std::bit_cast<float>(static_cast<int32_t>(start));
  for (int step = 0; step < 3; ++step) {
    const float y2 = y * y;
    y = y * (1.2f - 0.2f * (a * y2) * (y2 * y));  // y^5 alone could overflow
  }
  const float ay2 = a * (y * y);
  return ay2 * ay2;
}

float finished_scale(float scale, bool half) {
  if (!half) return std::max(scale, FLT_MIN);
  const float rounded = fp16_to_float(float_to_fp16(scale));
  require(std::isfinite(rounded), "a weight group needs the scale {}, beyond FP16; use weights.group = 0",
          scale);
  return std::max(rounded, 0x1p-24f);
}

// |w / step - rint(w / step)|^2.4 in the steps' range.
inline float step_error(float weight, float step, float low, float high) {
  const float steps = weight / step, rounded = round_even(steps);
  const float below = rounded > low ? rounded : low;
  return power_2_4(steps - (below < high ? below : high));
}

inline float sum_of(const float (&lanes)[kLanes]) {
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  return sum;
}

// Sum of step_error(); may return early above `limit`.
QUATRAIN_ISA_CLONES float sum_of_errors(const float* w, int64_t count, float step, float low, float high,
                                        float limit) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  while (i + kLanes <= count) {
    const int64_t end = std::min(i + kTile, count / kLanes * kLanes);
    for (; i < end; i += kLanes)
      for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += step_error(w[i + lane], step, low, high);
    if (sum_of(lanes) > limit) return sum_of(lanes);
  }
  for (; i < count; ++i) lanes[0] += step_error(w[i], step, low, high);
  return sum_of(lanes);
}

}  // namespace

float clip_error(std::span<const float> weights, float scale, int bits, float limit) {
  const float step = bits == 4 ? scale : scale * 0.0625f;
  const float low = bits == 4 ? -8.0f : -128.0f, high = bits == 4 ? 7.0f : 127.0f;
  const float unit = std::pow(step, 2.4f);  // errors are summed in units of the step
  return unit *
         sum_of_errors(weights.data(), static_cast<int64_t>(weights.size()), step, low, high, limit / unit);
}

float weight_scale(std::span<const float> weights, const ScaleRule& rule) {
  float largest = 0;
  for (const float weight : weights) largest = std::max(largest, std::fabs(weight));
  if (largest == 0) return 1;
  const float full = rule.bits == 4 ? largest / 7.0f : 16.0f * (largest / 127.0f);
  if (!rule.clip) return finished_scale(full, rule.half);
  float best_scale = 0, best = std::numeric_limits<float>::infinity();
  for (int percent = kLargestClip; percent >= kSmallestClip; --percent) {
    const float scale = finished_scale(full * (static_cast<float>(percent) / 100.0f), rule.half);
    const float error = clip_error(weights, scale, rule.bits, best);
    if (error < best) {
      best = error;
      best_scale = scale;
    }
  }
  return best_scale != 0 ? best_scale : finished_scale(full, rule.half);
}

}  // namespace quatrain
