// Rotary frequencies in the order of operations of the reference implementation (transformers,
// modeling_rope_utils): FP32 throughout, so that angles at late positions agree with models trained there. A
// power is taken in FP64 and rounded once, which is within the 1 ulp that its FP32 powers have.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "model/config.h"

namespace quatrain {
namespace {

// Llama 3.1: long wavelengths are stretched by `factor`, short ones kept, those between blended.
float llama3_frequency(const RopeConfig& rope, float frequency) {
  const auto factor = static_cast<float>(rope.factor);
  const double low_wavelength = rope.original_positions / rope.low_frequency_factor;
  const double high_wavelength = rope.original_positions / rope.high_frequency_factor;
  const float wavelength = (1.0f / frequency) * static_cast<float>(2 * std::numbers::pi);
  if (wavelength > static_cast<float>(low_wavelength)) return frequency / factor;
  if (wavelength < static_cast<float>(high_wavelength)) return frequency;
  const auto low = static_cast<float>(rope.low_frequency_factor);
  const auto span = static_cast<float>(rope.high_frequency_factor - rope.low_frequency_factor);
  const float smooth = ((1.0f / wavelength) * static_cast<float>(rope.original_positions) - low) / span;
  return (1.0f - smooth) * frequency / factor + smooth * frequency;
}

// YaRN (arXiv 2309.00071): frequencies that turn more than beta_fast times within the original context are
// kept, those below beta_slow turns are divided by `factor`, a linear ramp over the index lies between.
void apply_yarn(const RopeConfig& rope, const std::vector<float>& periods, std::vector<float>& frequencies) {
  const double width = 2.0 * static_cast<double>(frequencies.size());
  const auto index_of_turns = [&](double turns) {
    return width * std::log(rope.original_positions / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(rope.theta));
  };
  double low = index_of_turns(rope.beta_fast), high = index_of_turns(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, width - 1);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const float ramp = std::clamp(
        (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low), 0.0f, 1.0f);
    const float kept = 1.0f - ramp;
    const float interpolated = 1.0f / (static_cast<float>(rope.factor) * periods[i]);
    frequencies[i] = interpolated * (1.0f - kept) + frequencies[i] * kept;
  }
}

}  // namespace

std::vector<float> RopeConfig::inverse_frequencies(int64_t head_dim) const {
  const auto width = static_cast<int64_t>(static_cast<double>(head_dim) * partial);
  std::vector<float> periods(static_cast<size_t>(width / 2)), frequencies(periods.size());
  for (size_t i = 0; i < periods.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(width);
    periods[i] = static_cast<float>(std::pow(static_cast<float>(theta), static_cast<double>(exponent)));
    frequencies[i] = 1.0f / periods[i];
  }
  switch (scaling) {
    case Scaling::None:
      break;
    case Scaling::Linear:
      for (float& frequency : frequencies) frequency /= static_cast<float>(factor);
      break;
    case Scaling::Llama3:
      for (float& frequency : frequencies) frequency = llama3_frequency(*this, frequency);
      break;
    case Scaling::Yarn:
      apply_yarn(*this, periods, frequencies);
      break;
    case Scaling::Divisors:
      require(divisors.size() == frequencies.size(), "RoPE has {} frequencies but {} divisors",
              frequencies.size(), divisors.size());
      for (size_t i = 0; i < frequencies.size(); ++i) frequencies[i] /= static_cast<float>(divisors[i]);
      break;
  }
  return frequencies;
}

float RopeConfig::attention_scale() const {
  if (scaling != Scaling::Yarn) return 1;
  if (attention_factor != 0) return static_cast<float>(attention_factor);
  const auto magnitude = [&](double weight) {
    return factor <= 1 ? 1.0 : 0.1 * weight * std::log(factor) + 1.0;
  };
  if (mscale != 0 && mscale_all_dim != 0)
    return static_cast<float>(magnitude(mscale) / magnitude(mscale_all_dim));
  return static_cast<float>(magnitude(1));
}

}  // namespace quatrain
