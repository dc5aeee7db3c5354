#include "ops/rope.h"

#include <cfloat>
#include <cmath>

#include "each_isa.h"

namespace quatrain::ops {
namespace {

TEST(Rope, TurnsPairsByTheirAngle) {
  each_isa([] {
    for (const int64_t head_dim : {2, 8, 20, 64, 80}) {
      for (const int64_t half : {head_dim / 2, head_dim / 4}) {
        if (half == 0) continue;
        std::vector<float> frequencies(static_cast<size_t>(half));
        for (int64_t i = 0; i < half; ++i)
          frequencies[static_cast<size_t>(i)] =
              static_cast<float>(std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half)));
        for (const int64_t position : {0, 1, 777, 100000}) {
          const float scale = 1.25f;
          std::vector<float> cosine(static_cast<size_t>(half)), sine(static_cast<size_t>(half));
          rope_factors(position, frequencies, scale, cosine.data(), sine.data());
          const int64_t heads = 3;
          const auto before = random_values(heads * head_dim, 6);
          auto x = before;
          rope(x.data(), heads, head_dim, half, cosine.data(), sine.data());
          for (int64_t h = 0; h < heads; ++h)
            for (int64_t i = 0; i < half; ++i) {
              const double angle = static_cast<float>(position) * frequencies[static_cast<size_t>(i)];
              const double a = before[static_cast<size_t>(h * head_dim + i)];
              const double b = before[static_cast<size_t>(h * head_dim + half + i)];
              const double bound = 4 * FLT_EPSILON * scale * (std::fabs(a) + std::fabs(b));
              EXPECT_NEAR(x[static_cast<size_t>(h * head_dim + i)],
                          scale * (a * std::cos(angle) - b * std::sin(angle)), bound);
              EXPECT_NEAR(x[static_cast<size_t>(h * head_dim + half + i)],
                          scale * (b * std::cos(angle) + a * std::sin(angle)), bound);
            }
          for (int64_t h = 0; h < heads; ++h)  // the part that does not rotate
            for (int64_t i = 2 * half; i < head_dim; ++i)
              EXPECT_EQ(x[static_cast<size_t>(h * head_dim + i)],
                        before[static_cast<size_t>(h * head_dim + i)]);
        }
      }
    }
  });
}

}  // namespace
}  // namespace quatrain::ops
