#include "quant/transforms/balance.h"

#include <cmath>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "base/hadamard_matrix.h"
#include "base/rng.h"

namespace quatrain {
namespace {

constexpr double kSmallestEigenvalue = 1e-9;  // of the largest: what FP64 moments of FP32 values still hold

std::vector<int64_t> permutation(int64_t n, SplitMix64& random) {
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

torch::Tensor power(const torch::Tensor& s, double exponent) {
  auto [values, vectors] = torch::linalg_eigh(s);
  values = torch::maximum(values, values.amax(-1, true) * kSmallestEigenvalue);
  return (vectors * values.pow(exponent).unsqueeze(-2)).matmul(vectors.transpose(-1, -2));
}

// What is added to a diagonal [..., n]. A block that nothing reaches stays invertible.
torch::Tensor damping_of(const torch::Tensor& diagonal, double damping) {
  const torch::Tensor mean = diagonal.mean(-1, true);
  return torch::where(mean > 0, mean * damping, torch::ones_like(mean));
}

torch::Tensor damped(const torch::Tensor& s, double damping) {
  torch::Tensor result = s.to(torch::kDouble).clone();
  torch::Tensor diagonal = result.diagonal(0, -2, -1);
  diagonal.add_(damping_of(diagonal, damping));
  return result;
}

}  // namespace

torch::Tensor offset_rotation(int64_t n, uint64_t seed, bool hadamard) {
  SplitMix64 random(seed);
  torch::Tensor q = torch::empty({n, n}, torch::kDouble);
  double* out = q.data_ptr<double>();
  if (!hadamard || !hadamard_exists(n)) {
    for (int64_t i = 0; i < n * n; ++i) out[i] = random.normal();
    q.select(1, 0).fill_(1);
    torch::Tensor basis = std::get<0>(torch::linalg_qr(q));
    if (basis[0][0].item<double>() < 0) basis.select(1, 0).neg_();
    return basis.t().contiguous();
  }
  const std::vector<int8_t> entries = hadamard_matrix(n);
  const std::vector<int64_t> columns = permutation(n, random), rows = permutation(n - 1, random);
  const double norm = 1 / std::sqrt(static_cast<double>(n));
  for (int64_t i = 0; i < n; ++i) {
    const int64_t row = i == 0 ? 0 : 1 + rows[static_cast<size_t>(i - 1)];
    const double sign = i == 0 ? norm : norm * random.sign();
    for (int64_t j = 0; j < n; ++j)
      out[i * n + j] = sign * entries[static_cast<size_t>(row * n + columns[static_cast<size_t>(j)])];
  }
  return q;
}

torch::Tensor geometric_mean(const torch::Tensor& s, const torch::Tensor& g) {
  const torch::Tensor root = power(s, 0.5), inverse = power(s, -0.5);
  return inverse.matmul(power(root.matmul(g).matmul(root), 0.5)).matmul(inverse);
}

torch::Tensor balancing_scale(const torch::Tensor& s, const torch::Tensor& g, double damping) {
  return ((s + damping_of(s, damping)) / (g + damping_of(g, damping))).pow(0.25);
}

torch::Tensor balance(const torch::Tensor& s, const torch::Tensor& g, double damping, uint64_t seed) {
  const int64_t n = s.size(-1);
  // On the CPU, so that bases have the same signs whatever the device.
  const torch::Tensor moments = damped(s.cpu(), damping);
  const torch::Tensor a = power(geometric_mean(moments, damped(g.cpu(), damping)), 0.5);
  const torch::Tensor basis =
      std::get<1>(torch::linalg_eigh(a.transpose(-1, -2).matmul(moments).matmul(a))).flip(-1);
  torch::Tensor rotation = offset_rotation(n, seed);
  if (s.dim() == 3) {
    std::vector<torch::Tensor> rotations;
    for (int64_t block = 0; block < s.size(0); ++block)
      rotations.push_back(offset_rotation(n, SplitMix64(seed + static_cast<uint64_t>(block)).next()));
    rotation = torch::stack(rotations);
  }
  const torch::Tensor result = a.matmul(basis).matmul(rotation);
  require(torch::isfinite(result).all().item<bool>(), "a balanced transform of order {} is not finite", n);
  return result.to(s.device());
}

}  // namespace quatrain
