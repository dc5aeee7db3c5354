#include "ops/gated_activation.h"

#include <cfloat>
#include <cmath>

#include "each_isa.h"

namespace quatrain::ops {
namespace {

double gate_of(GateFunction function, double g) {
  if (function == GateFunction::Silu) return g / (1 + std::exp(-g));
  const double u = std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g);
  return g / (1 + std::exp(-2 * u));  // g / 2 (1 + tanh u) without its cancellation
}

TEST(GatedActivation, MatchesDoublePrecision) {
  each_isa([] {
    for (const GateFunction function : {GateFunction::Silu, GateFunction::GeluTanh})
      for (const int64_t count : {1, 3, 16, 17, 100}) {
        auto gate = random_values(count, 7, 4.0f);
        const auto up = random_values(count, 8);
        if (count > 16) gate[2] = 0, gate[3] = 200, gate[4] = -200, gate[5] = -30, gate[6] = 1e-20f;
        std::vector<float> y(static_cast<size_t>(count) + 1, -99.0f);
        gated_activation(function, gate.data(), up.data(), count, y.data());
        for (int64_t i = 0; i < count; ++i) {
          const double g = gate[static_cast<size_t>(i)];
          const double expected = gate_of(function, g) * up[static_cast<size_t>(i)];
          // The exponential's relative error is a few ulp plus that of its argument's rounding, |argument|
          // ulps; below e^-87 the product may vanish.
          const double argument =
              function == GateFunction::Silu ? std::fabs(g) : 1.6 * std::fabs(g + 0.045 * g * g * g);
          const double relative = (8 + 4 * std::min(argument, 88.0)) * FLT_EPSILON;
          EXPECT_NEAR(y[static_cast<size_t>(i)], expected, relative * std::fabs(expected) + 1e-35)
              << "gate " << g << " up " << up[static_cast<size_t>(i)];
        }
        EXPECT_EQ(y.back(), -99.0f);
      }
  });
}

TEST(GatedActivation, KeepsNan) {
  each_isa([] {
    const std::vector<float> gate(20, NAN), up(20, 1.0f);
    std::vector<float> y(20);
    for (const GateFunction function : {GateFunction::Silu, GateFunction::GeluTanh}) {
      gated_activation(function, gate.data(), up.data(), 20, y.data());
      for (const float value : y) EXPECT_TRUE(std::isnan(value));
    }
  });
}

}  // namespace
}  // namespace quatrain::ops
