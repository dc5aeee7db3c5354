#include "quant/transforms/balance.h"

#include <array>
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

// s^e for each exponent e.
template <typename... Exponents>
auto powers(const torch::Tensor& s, Exponents... exponents) {
  auto [decomposed, vectors] = torch::linalg_eigh(s);
  const torch::Tensor values = torch::maximum(decomposed, decomposed.amax(-1, true) * kSmallestEigenvalue);
  const torch::Tensor basis = vectors;
  return std::array{(basis * values.pow(exponents).unsqueeze(-2)).matmul(basis.transpose(-1, -2))...};
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
  const auto [root, inverse] = powers(s, 0.5, -0.5);
  return inverse.matmul(powers(root.matmul(g).matmul(root), 0.5)[0]).matmul(inverse);
}

torch::Tensor balancing_scale(const torch::Tensor& s, const torch::Tensor& g, double damping) {
  return ((s + damping_of(s, damping)) / (g + damping_of(g, damping))).pow(0.25);
}

torch::Tensor balance(const torch::Tensor& s, const torch::Tensor& g, double damping, uint64_t seed,
                      ThreadPool* pool) {
  const int64_t n = s.size(-1);
  // On the CPU, so that bases have the same signs whatever the device.
  const torch::Tensor moments = s.to(torch::kCPU, torch::kDouble), gram = g.to(torch::kCPU, torch::kDouble);
  torch::Tensor result = torch::empty_like(moments);
  const auto one = [&](const torch::Tensor& own, const torch::Tensor& weights, uint64_t own_seed) {
    const torch::Tensor x = damped(own, damping);
    const torch::Tensor a = powers(geometric_mean(x, damped(weights, damping)), 0.5)[0];
    const torch::Tensor basis = std::get<1>(torch::linalg_eigh(a.t().matmul(x).matmul(a))).flip(-1);
    return a.matmul(basis).matmul(offset_rotation(n, own_seed));
  };
  if (s.dim() == 2) {
    result = one(moments, gram, seed);
  } else {
    const auto blocks = [&](int64_t begin, int64_t end, int) {
      const c10::InferenceMode inference(result.is_inference());  // as the caller
      for (int64_t block = begin; block < end; ++block)
        result[block].copy_(
            one(moments[block], gram[block], SplitMix64(seed + static_cast<uint64_t>(block)).next()));
    };
    if (pool == nullptr)
      blocks(0, s.size(0), 0);
    else
      pool->parallel_for(s.size(0), 1, blocks);
  }
  require(torch::isfinite(result).all().item<bool>(), "a balanced transform of order {} is not finite", n);
  return result.to(s.device());
}

}  // namespace quatrain
