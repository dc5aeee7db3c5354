#include "ops/argmax.h"

#include <algorithm>
#include <limits>

#include "each_isa.h"

namespace quatrain::ops {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Argmax, FindsTheFirstLargest) {
  each_isa([] {
    for (const int64_t count : {1, 2, 7, 16, 17, 100, 4096, 4097, 9000}) {
      std::vector<float> x = random_values(count, 31);
      EXPECT_EQ(argmax(x), std::max_element(x.begin(), x.end()) - x.begin()) << count;
      for (const int64_t at : {int64_t{0}, count / 2, count - 1}) {
        std::vector<float> y = x;
        y[static_cast<size_t>(at)] = y.back() = 50;  // a tie with the last
        EXPECT_EQ(argmax(y), at) << count;
        std::fill(y.begin(), y.end(), -kInfinity);
        EXPECT_EQ(argmax(y), 0);
        y[static_cast<size_t>(at)] = -3e38f;
        EXPECT_EQ(argmax(y), at) << count;
        y[static_cast<size_t>(at)] = kInfinity;
        EXPECT_EQ(argmax(y), at) << count;
      }
    }
  });
}

TEST(Argmax, FindsTheFirstNan) {
  each_isa([] {
    for (const int64_t count : {1, 5, 64, 5000})
      for (const int64_t at : {int64_t{0}, count / 3, count - 1}) {
        std::vector<float> x = random_values(count, 32);
        x.front() = kInfinity;
        x.back() = -kInfinity;
        x[static_cast<size_t>(at)] = std::numeric_limits<float>::quiet_NaN();
        EXPECT_EQ(argmax(x), at) << count;
      }
  });
}

}  // namespace
}  // namespace quatrain::ops
