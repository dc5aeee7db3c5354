#include "quant/reference/row_math.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <utility>

#include "base/half.h"
#include "base/isa_clones.h"

namespace quatrain {
namespace {

constexpr int kLanes = 16;  // partial results, so that reductions are SIMD without reordering

inline float larger(float a, float b) {
  return a > b ? a : b;
}
inline float smaller(float a, float b) {
  return a < b ? a : b;
}

// exp(x) to about 2 ulp for x <= 88, 0 below -87, NaN of NaN: x = n ln 2 + r, |r| <= ln 2 / 2, and Cephes'
// polynomial. n comes from the low bits of a sum that rounds to whole numbers.
inline float exponential(float x) {
  const float bounded = x < -87.0f ? -87.0f : x;
  const float shifted = bounded * 1.44269504f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  const float r = (bounded - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float value = p * (r * r) + r + 1.0f;
  const float power = std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) - 0x4B400000u + 127u) << 23);
  return x < -87.0f ? 0.0f : value * power;
}

inline double sum_of(const float (&lanes)[kLanes]) {
  double sum = 0;
  for (const float lane : lanes) sum += lane;
  return sum;
}

// Every function below that is built for several ISAs stays free of calls that are not inlined.
QUATRAIN_ISA_CLONES double squared_norm(const float* x, int64_t count) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += x[i + lane] * x[i + lane];
  for (; i < count; ++i) lanes[0] += x[i] * x[i];
  return sum_of(lanes);
}

QUATRAIN_ISA_CLONES void scale_by(const float* x, const float* gain, float factor, int64_t count,
                                  float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = x[i] * factor * gain[i];
}

QUATRAIN_ISA_CLONES void turn(const float* x, const float* cosine, const float* sine, int64_t half,
                              float* out) {
  for (int64_t i = 0; i < half; ++i) {
    out[i] = x[i] * cosine[i] - x[half + i] * sine[i];
    out[half + i] = x[half + i] * cosine[i] + x[i] * sine[i];
  }
}

QUATRAIN_ISA_CLONES float largest_of(const float* x, int64_t count) {
  float lanes[kLanes];
  for (float& lane : lanes) lane = -FLT_MAX;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = larger(x[i + lane], lanes[lane]);
  for (; i < count; ++i) lanes[0] = larger(x[i], lanes[0]);
  float result = lanes[0];
  for (const float lane : lanes) result = larger(lane, result);
  return result;
}

// x <- exp(x - shift); returns the sum.
QUATRAIN_ISA_CLONES double exponentials(float* x, float shift, int64_t count) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) {
      x[i + lane] = exponential(x[i + lane] - shift);
      lanes[lane] += x[i + lane];
    }
  for (; i < count; ++i) {
    x[i] = exponential(x[i] - shift);
    lanes[0] += x[i];
  }
  return sum_of(lanes);
}

QUATRAIN_ISA_CLONES void multiply(float* x, float factor, int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[i] *= factor;
}

struct Range {
  float low, high;
  bool finite;
};

QUATRAIN_ISA_CLONES Range range_of(const float* x, int64_t count) {
  float low[kLanes], high[kLanes];
  int32_t bad[kLanes] = {};
  for (int lane = 0; lane < kLanes; ++lane) {
    low[lane] = FLT_MAX;
    high[lane] = -FLT_MAX;
  }
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) {
      const float value = x[i + lane];
      low[lane] = smaller(value, low[lane]);
      high[lane] = larger(value, high[lane]);
      // Exponent all ones: infinity or NaN.
      bad[lane] |= (std::bit_cast<int32_t>(value) & 0x7F800000) == 0x7F800000 ? 1 : 0;
    }
  Range range{FLT_MAX, -FLT_MAX, true};
  for (int lane = 0; lane < kLanes; ++lane) {
    range.low = smaller(low[lane], range.low);
    range.high = larger(high[lane], range.high);
    range.finite = range.finite && bad[lane] == 0;
  }
  for (; i < count; ++i) {
    range.low = smaller(x[i], range.low);
    range.high = larger(x[i], range.high);
    range.finite = range.finite && (std::bit_cast<int32_t>(x[i]) & 0x7F800000) != 0x7F800000;
  }
  return range;
}

// scale (clamp(rint(x / scale) + zero, 0, codes) - zero)
QUATRAIN_ISA_CLONES void round_group(const float* x, int64_t count, float scale, float zero, float codes,
                                     float* out) {
  for (int64_t i = 0; i < count; ++i) {
    const float code = smaller(larger(__builtin_rintf(x[i] / scale) + zero, 0.0f), codes);
    out[i] = scale * (code - zero);
  }
}

// scale and zero of a group with values in `range`.
std::pair<float, float> scale_and_zero(const Range& range, const GroupRule& rule) {
  float low = range.low, high = range.high;
  const float magnitude = larger(std::fabs(low), std::fabs(high));
  const auto middle = static_cast<float>(1 << (rule.bits - 1));
  if (magnitude == 0) return {1.0f, rule.symmetric ? middle : 0.0f};
  float scale = 0;
  if (rule.symmetric) {
    scale = magnitude / (middle - 1);
  } else {
    if (rule.force_zero) {
      low = smaller(low, 0.0f);
      high = larger(high, 0.0f);
    }
    scale = (high - low) / static_cast<float>((1 << rule.bits) - 1);
  }
  scale = larger(scale, larger(magnitude / 32767.0f, FLT_MIN));
  if (rule.half_scale) scale = larger(fp16_to_float(float_to_fp16(scale)), 0x1p-24f);
  return {scale, rule.symmetric ? middle : std::rint(-low / scale)};
}

}  // namespace

void rms_norm_rows(const float* x, const float* gain, int64_t rows, int64_t width, float epsilon,
                   float* out) {
  for (int64_t row = 0; row < rows; ++row) {
    const float* values = x + row * width;
    const auto mean_square = static_cast<float>(squared_norm(values, width) / static_cast<double>(width));
    scale_by(values, gain, 1.0f / std::sqrt(mean_square + epsilon), width, out + row * width);
  }
}

void rotate_rows(const float* x, const float* cosine, const float* sine, int64_t tokens, int64_t heads,
                 int64_t dim, int64_t half, float* out) {
  for (int64_t token = 0; token < tokens; ++token)
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t at = (token * heads + head) * dim;
      turn(x + at, cosine + token * half, sine + token * half, half, out + at);
      std::copy(x + at + 2 * half, x + at + dim, out + at + 2 * half);
    }
}

void causal_softmax_rows(float* scores, int64_t rows, int64_t keys, int64_t begin, int64_t first,
                         int64_t shared, int64_t window) {
  for (int64_t row = 0; row < rows; ++row) {
    float* values = scores + row * keys;
    const int64_t position = begin + row / shared;
    const int64_t from = window > 0 ? std::max<int64_t>(position - window + 1 - first, 0) : 0;
    const int64_t to = std::min(position + 1 - first, keys);
    std::fill(values, values + from, 0.0f);
    std::fill(values + to, values + keys, 0.0f);
    const float shift = largest_of(values + from, to - from);
    const double sum = exponentials(values + from, shift, to - from);
    multiply(values + from, static_cast<float>(1.0 / sum), to - from);
  }
}

QUATRAIN_ISA_CLONES void silu_product(const float* gate, const float* up, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    // exp(88) is finite, and silu(-88) is 0 to FP32's last bit.
    const float x = gate[i];
    out[i] = x / (1.0f + exponential(smaller(-x, 88.0f))) * up[i];
  }
}

int64_t first_not_finite(const float* x, int64_t count) {
  if (range_of(x, count).finite) return -1;
  for (int64_t i = 0; i < count; ++i)
    if (!std::isfinite(x[i])) return i;
  return -1;
}

int64_t quantize_rows(const float* x, int64_t rows, int64_t width, int64_t group, const GroupRule& rule,
                      float* out) {
  const auto codes = static_cast<float>((1 << rule.bits) - 1);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t begin = 0; begin < width; begin += group) {
      const int64_t at = row * width + begin, count = std::min(group, width - begin);
      const Range range = range_of(x + at, count);
      if (!range.finite) return at + first_not_finite(x + at, count);
      const auto [scale, zero] = scale_and_zero(range, rule);
      round_group(x + at, count, scale, zero, codes, out + at);
    }
  return -1;
}

}  // namespace quatrain
