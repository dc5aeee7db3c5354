#include "ops/rms_norm.h"

#include <cfloat>
#include <cmath>
#include <limits>

#include "each_isa.h"

namespace quatrain::ops {
namespace {

TEST(RmsNorm, MatchesDoublePrecision) {
  each_isa([] {
    for (const int64_t width : {1, 3, 15, 16, 64, 65, 127, 576}) {
      const int64_t rows = 3, x_stride = width + 2, y_stride = width + 5;
      const auto x = random_values(rows * x_stride, 1, 3.0f), weight = random_values(width, 2);
      std::vector<float> y(static_cast<size_t>(rows * y_stride), -99.0f);
      EXPECT_EQ(rms_norm(x.data(), rows, x_stride, width, weight.data(), 1e-5f, y.data(), y_stride), -1);
      for (int64_t r = 0; r < rows; ++r) {
        double squares = 0;
        for (int64_t i = 0; i < width; ++i) squares += std::pow(static_cast<double>(x[r * x_stride + i]), 2);
        const double factor = 1 / std::sqrt(squares / static_cast<double>(width) + 1e-5);
        for (int64_t i = 0; i < width; ++i) {
          const double expected = x[r * x_stride + i] * factor * weight[i];
          // The sum has `width` roundings at most, halved by the root; five operations follow.
          EXPECT_NEAR(y[r * y_stride + i], expected,
                      (0.5 * static_cast<double>(width) + 6) * FLT_EPSILON * std::fabs(expected) + FLT_MIN);
        }
        EXPECT_EQ(y[r * y_stride + width], -99.0f);
      }
    }
  });
}

TEST(RmsNorm, WorksInPlace) {
  each_isa([] {
    auto x = random_values(100, 3);
    const auto weight = random_values(50, 4);
    std::vector<float> y(100);
    rms_norm(x.data(), 2, 50, 50, weight.data(), 1e-6f, y.data(), 50);
    rms_norm(x.data(), 2, 50, 50, weight.data(), 1e-6f, x.data(), 50);
    EXPECT_EQ(x, y);
  });
}

TEST(RmsNorm, NamesTheFirstRowThatIsNotFinite) {
  each_isa([] {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), INFINITY, -INFINITY, 3e38f})
      for (const int64_t channel : {0, 30, 36}) {  // in whole vectors and in the rest
        auto x = random_values(5 * 37, 5);
        x[static_cast<size_t>(2 * 37 + channel)] = bad;
        x[static_cast<size_t>(4 * 37)] = bad;
        const std::vector<float> weight(37, 1.0f);
        std::vector<float> y(5 * 37);
        EXPECT_EQ(rms_norm(x.data(), 5, 37, 37, weight.data(), 1e-6f, y.data(), 37), 2);
      }
  });
}

}  // namespace
}  // namespace quatrain::ops
