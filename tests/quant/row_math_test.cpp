#include "quant/reference/row_math.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "base/rng.h"

namespace quatrain {
namespace {

// Within a few units in the last place of FP64 arithmetic; hidden keys weigh nothing.
TEST(RowMath, CausalSoftmax) {
  SplitMix64 random(1);
  for (const int64_t window : {0, 5}) {
    const int64_t begin = 20, first = window > 0 ? begin - window + 1 : 0, shared = 3, queries = 7,
                  keys = begin + queries - first;
    std::vector<float> scores(static_cast<size_t>(queries * shared * keys));
    for (float& score : scores) score = static_cast<float>(4 * random.normal());
    std::vector<float> weights = scores;
    causal_softmax_rows(weights.data(), queries * shared, keys, begin, first, shared, window);
    for (int64_t row = 0; row < queries * shared; ++row) {
      const int64_t position = begin + row / shared;
      const auto seen = [&](int64_t key) {
        return first + key <= position && (window == 0 || first + key > position - window);
      };
      double sum = 0;
      for (int64_t key = 0; key < keys; ++key)
        if (seen(key)) sum += std::exp(static_cast<double>(scores[static_cast<size_t>(row * keys + key)]));
      for (int64_t key = 0; key < keys; ++key) {
        const auto at = static_cast<size_t>(row * keys + key);
        const double expected = seen(key) ? std::exp(static_cast<double>(scores[at])) / sum : 0;
        // FP32 rounding of x - max (|x| < 40: 2^-19) is the largest part.
        EXPECT_NEAR(weights[at], expected, 4e-6 * expected) << row << " " << key;
      }
    }
  }
  std::vector<float> bad{NAN, 1, 2};  // never a silent number
  causal_softmax_rows(bad.data(), 1, 3, 2, 0, 1, 0);
  EXPECT_TRUE(std::isnan(bad[1]));
}

TEST(RowMath, SiluNormAndRope) {
  for (float x = -100; x < 100; x += 0.37f) {
    const float up = 1.5f;
    float out = 0;
    silu_product(&x, &up, 1, &out);
    const double expected = 1.5 * x / (1 + std::exp(-static_cast<double>(x)));
    EXPECT_NEAR(out, expected, 4e-7 * std::fabs(expected) + 1e-36) << x;
  }
  const torch::Tensor x = torch::arange(2 * 50).reshape({2, 50}).to(torch::kFloat) / 7 - 3,
                      gain = torch::linspace(0.5, 2, 50);
  torch::Tensor out = torch::empty_like(x);
  rms_norm_rows(x.data_ptr<float>(), gain.data_ptr<float>(), 2, 50, 1e-5f, out.data_ptr<float>());
  const torch::Tensor wide = x.to(torch::kDouble);
  const torch::Tensor expected = wide / (wide.square().mean(1, true) + 1e-5).sqrt() * gain;
  EXPECT_LT((out - expected).abs().max().item<double>(), 3e-6);
  // Two heads of 6 with 4 turning columns: a quarter turn of the first pair, none of the second.
  const std::vector<float> head{1, 2, 3, 4, 5, 6}, cosine{0, 1}, sine{1, 0};
  std::vector<float> two = head, turned(12);
  two.insert(two.end(), head.begin(), head.end());
  rotate_rows(two.data(), cosine.data(), sine.data(), 1, 2, 6, 2, turned.data());
  EXPECT_EQ(turned, (std::vector<float>{-3, 2, 1, 4, 5, 6, -3, 2, 1, 4, 5, 6}));
}

}  // namespace
}  // namespace quatrain
