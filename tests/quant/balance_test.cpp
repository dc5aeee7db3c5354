// Closed forms against the equations that define them.
#include "quant/transforms/balance.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "quant/transforms/top1_pca.h"
#include "quant/weights/target.h"

namespace quatrain {
namespace {

torch::Tensor positive(int64_t n) {
  const torch::Tensor x =
      torch::randn({3 * n, n}, torch::kDouble) * torch::linspace(0.1, 4, n, torch::kDouble);
  return x.t().matmul(x) / (3 * n);
}

double largest(const torch::Tensor& x) {
  return x.abs().max().item<double>();
}

// tr(A^T S A) tr(A^-1 G A^-T): what noise on both sides costs.
double cost(const torch::Tensor& a, const torch::Tensor& s, const torch::Tensor& g) {
  const torch::Tensor inverse = torch::linalg_inv(a);
  return (a.t().matmul(s).matmul(a).trace() * inverse.matmul(g).matmul(inverse.t()).trace()).item<double>();
}

TEST(OffsetRotation, IsOrthogonalWithAConstantFirstRow) {
  for (const int64_t n : {2, 16, 22, 36, 64, 105, 128}) {  // 22 and 105: no Hadamard matrix
    const torch::Tensor q = offset_rotation(n, 5);
    EXPECT_LT(largest(q.matmul(q.t()) - torch::eye(n, torch::kDouble)), 1e-12) << n;
    EXPECT_LT(largest(q[0] - 1 / std::sqrt(static_cast<double>(n))), 1e-12) << n;
    if (n > 2) {
      EXPECT_GT(largest(q - offset_rotation(n, 6)), 0) << n;
    }
  }
}

// X = S^-1 # G is the positive solution of X S X = G.
TEST(GeometricMean, SolvesTheRiccatiEquation) {
  torch::manual_seed(1);
  const torch::Tensor s = positive(24), g = positive(24), x = geometric_mean(s, g);
  EXPECT_LT(largest(x - x.t()), 1e-10 * largest(x));
  EXPECT_LT(largest(x.matmul(s).matmul(x) - g), 1e-9 * largest(g));
  const torch::Tensor d = torch::linspace(1, 9, 5, torch::kDouble);
  EXPECT_LT(largest(geometric_mean(torch::diag(d), torch::eye(5, torch::kDouble)) - torch::diag(d.rsqrt())),
            1e-12);
}

TEST(Balance, IsTheCheapestTransform) {
  torch::manual_seed(2);
  const torch::Tensor s = positive(16), g = positive(16);
  const torch::Tensor a = balance(s, g, 0, 7);
  const double best = cost(a, s, g);
  EXPECT_LT(best, 0.9 * cost(torch::eye(16, torch::kDouble), s, g));
  for (int attempt = 0; attempt < 20; ++attempt)
    EXPECT_GE(cost(a + 0.02 * torch::randn({16, 16}, torch::kDouble), s, g), best * (1 - 1e-9));
  // Behind the eigenbasis the first row of the rotation is constant: the largest direction is an offset.
  const torch::Tensor moved = a.t().matmul(s).matmul(a);
  EXPECT_GT(moved.mean().item<double>() * 16,
            torch::linalg_eigvalsh(moved).max().item<double>() * (1 - 1e-6));
}

TEST(Balance, BlocksAndDeadInputsAreFinite) {
  const torch::Tensor a =
      balance(torch::zeros({2, 8, 8}, torch::kDouble), torch::zeros({2, 8, 8}, torch::kDouble), 1e-3, 1);
  EXPECT_TRUE(torch::isfinite(a).all().item<bool>());
  EXPECT_GT(largest(a[0] - a[1]), 0);  // each its own rotation
}

// The example that the paper prints: sorted grouping of two groups.
TEST(OffsetGrouping, FollowsThePaper) {
  const torch::Tensor values = torch::tensor({1.0, 2.0, 3.0, 4.0, 50.0, 60.0});
  EXPECT_TRUE(values.index_select(0, offset_grouping(values, 3))
                  .equal(torch::tensor({60.0, 1.0, 2.0, 50.0, 3.0, 4.0})));
  EXPECT_THROW(offset_grouping(values, 4), Error);
}

// Tokens along one spiky direction: after the rotation they are one constant in the first group.
TEST(Top1Pca, TurnsTheSpikyDirectionIntoAnOffset) {
  torch::manual_seed(4);
  torch::Tensor direction = torch::zeros({32}, torch::kDouble);
  direction[3] = 40;
  direction[17] = -36;
  const torch::Tensor rows =
      torch::randn({200, 1}, torch::kDouble) * direction + 0.01 * torch::randn({200, 32}, torch::kDouble);
  const torch::Tensor q = top1_pca_rotation(rows, 8, 3);
  EXPECT_LT(largest(q.matmul(q.t()) - torch::eye(32, torch::kDouble)), 1e-12);
  const torch::Tensor turned = direction.matmul(q);
  const double offset = direction.norm().item<double>() / std::sqrt(8.0);
  EXPECT_LT(largest(turned.slice(0, 0, 8).abs() - offset), 0.05);
  EXPECT_LT(largest(turned.slice(0, 8)), 0.3);
  EXPECT_TRUE(top1_token(rows.to(torch::kFloat)).size(0) == 1);
}

TEST(CorrectedTarget, SolvesTheLeastSquares) {
  torch::manual_seed(5);
  const torch::Tensor x = torch::randn({500, 12}, torch::kDouble), w = torch::randn({6, 12}, torch::kDouble),
                      other = torch::randn({6, 12}, torch::kDouble);
  const torch::Tensor h = x.t().matmul(x) / 500;
  EXPECT_LT(largest(corrected_target(w, h, torch::zeros({6, 12}, torch::kDouble), 1) - w), 1e-5);
  // Aiming at another matrix's outputs gives that matrix, but for the damping of 1 % towards w.
  const torch::Tensor pull = x.matmul(other.t()).t().matmul(x) / 500;
  EXPECT_LT(largest(corrected_target(w, h, pull, 0) - other), 0.03 * largest(w - other));
  EXPECT_TRUE(corrected_target(w, torch::zeros({12, 12}, torch::kDouble), pull, 0).equal(w));
}

}  // namespace
}  // namespace quatrain
