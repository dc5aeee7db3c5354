#include "base/rng.h"

#include <gtest/gtest.h>

#include <cmath>

namespace quatrain {
namespace {

// The first outputs for seed 1234567, as printed with the generator's reference implementation (Vigna).
TEST(Rng, PublishedStream) {
  SplitMix64 random(1234567);
  EXPECT_EQ(random.next(), 6457827717110365317u);
  EXPECT_EQ(random.next(), 3203168211198807973u);
  EXPECT_EQ(random.next(), 9817491932198370423u);
  EXPECT_EQ(random.next(), 4593380528125082431u);
  EXPECT_EQ(random.next(), 16408922859458223821u);
}

TEST(Rng, RangesAndMoments) {
  SplitMix64 random(1);
  constexpr int n = 200000;
  double sum = 0, squares = 0, uniform = 0, signs = 0;
  for (int i = 0; i < n; ++i) {
    ASSERT_LT(random.below(7), 7u);
    const double u = random.uniform();
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    uniform += u;
    const double x = random.normal();
    sum += x;
    squares += x * x;
    signs += random.sign();
  }
  // five standard errors: 5 / sqrt(n) = 0.011 for a unit variance, sqrt(2) times that for squares
  EXPECT_NEAR(sum / n, 0, 0.012);
  EXPECT_NEAR(squares / n, 1, 0.017);
  EXPECT_NEAR(uniform / n, 0.5, 0.004);
  EXPECT_NEAR(signs / n, 0, 0.012);
}

}  // namespace
}  // namespace quatrain
