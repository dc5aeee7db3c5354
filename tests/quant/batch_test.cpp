// Several samples at once, as on a GPU, give what they give one by one.
#include <gtest/gtest.h>

#include "base/rng.h"
#include "model/checkpoint.h"
#include "quant/layer_moments.h"
#include "quant/layer_quantizer.h"
#include "quant/policy.h"
#include "quant/reference/operations.h"
#include "support/tiny_models.h"

namespace quatrain {
namespace {

torch::Tensor random_tensor(at::IntArrayRef shape, uint64_t seed) {
  torch::Tensor tensor = torch::empty(shape, torch::kFloat);
  SplitMix64 rng(seed);
  for (int64_t i = 0; i < tensor.numel(); ++i) tensor.data_ptr<float>()[i] = static_cast<float>(rng.normal());
  return tensor;
}

double distance(const torch::Tensor& a, const torch::Tensor& b) {
  return ((a - b).norm() / b.norm()).item<double>();
}

TEST(Batch, SamplesOfOneLengthAreJoined) {
  const std::vector<std::vector<int32_t>> five = {{1, 2}, {3, 4}, {5, 6}, {7, 8}, {9, 0}};
  const SampleBatches batches = batched(five, 2);
  EXPECT_EQ(batches.sequence, 2);
  EXPECT_EQ(batches.ids, (std::vector<std::vector<int32_t>>{{1, 2, 3, 4}, {5, 6, 7, 8}, {9, 0}}));
  EXPECT_EQ(batched(five, 1).ids, five);
  EXPECT_EQ(batched(five, 1).sequence, 0);
  const std::vector<std::vector<int32_t>> uneven = {{1, 2}, {3}};
  EXPECT_EQ(batched(uneven, 8).ids, uneven);
  EXPECT_EQ(batched(uneven, 8).sequence, 0);
  EXPECT_TRUE(batched({}, 8).ids.empty());
}

// 300 tokens: more than one chunk of queries.
TEST(Batch, AttentionStaysWithinItsSequence) {
  const int64_t tokens = 300;
  const torch::Tensor queries = random_tensor({3 * tokens, 4, 8}, 1),
                      keys = random_tensor({3 * tokens, 2, 8}, 2),
                      values = random_tensor({3 * tokens, 2, 8}, 3);
  for (const int64_t window : {0, 7}) {
    const torch::Tensor together = operations::attend(queries, keys, values, window, 3);
    ASSERT_EQ(together.sizes(), torch::IntArrayRef({3 * tokens, 32}));
    for (int64_t s = 0; s < 3; ++s) {
      const auto own = [&](const torch::Tensor& x) { return x.slice(0, s * tokens, (s + 1) * tokens); };
      EXPECT_LT(distance(own(together), operations::attend(own(queries), own(keys), own(values), window)),
                1e-6)
          << window;
    }
  }
}

class BatchLayers : public TinyModels {
 protected:
  static constexpr int64_t kTokens = 40, kSamples = 6;

  void open(const std::string& model) {
    source_ = checkpoint_weight_source(open_checkpoint(models_ / model));
    hidden_ = random_tensor({kSamples * kTokens, source_->config().hidden}, 5);
  }
  std::vector<torch::Tensor> one_by_one() const { return hidden_.clone().split(kTokens); }
  std::vector<torch::Tensor> together() const { return hidden_.clone().split(4 * kTokens); }  // of 4 and of 2
  DecoderLayer layer(int64_t sequence) const {
    DecoderLayer layer(*source_, 1);
    layer.sequence = sequence;
    return layer;
  }

  std::unique_ptr<WeightSource> source_;
  torch::Tensor hidden_;
};

TEST_F(BatchLayers, StreamAndMomentsAreThoseOfSingleSamples) {
  for (const char* model : {"llama-gqa", "qwen3-qknorm", "gemma3-text", "qwen3-moe"}) {
    open(model);
    const ModelConfig& config = source_->config();
    const ExactPass a = run_exact(layer(0), config, one_by_one(), 16, 16),
                    b = run_exact(layer(kTokens), config, together(), 16, 16);
    EXPECT_LT(distance(torch::cat(b.output), torch::cat(a.output)), 1e-5) << model;
    EXPECT_LT(distance(torch::cat(b.middle), torch::cat(a.middle)), 1e-5) << model;
    EXPECT_EQ(b.moments.tokens, a.moments.tokens);
    EXPECT_EQ(b.moments.down_tokens, a.moments.down_tokens);
    EXPECT_EQ(b.moments.expert_tokens, a.moments.expert_tokens);
    for (const auto part :
         {&LayerMoments::attention, &LayerMoments::mlp, &LayerMoments::down, &LayerMoments::mixed,
          &LayerMoments::keys, &LayerMoments::queries, &LayerMoments::key_sum})
      EXPECT_LT(distance(b.moments.*part, a.moments.*part), 1e-5) << model;
    ASSERT_EQ(b.moments.largest_keys.sizes(), a.moments.largest_keys.sizes()) << model;
    EXPECT_LT(distance(b.moments.largest_keys, a.moments.largest_keys), 1e-5) << model;
  }
}

// Codes differ only where sums in another order meet a tie. Without balanced transforms: the eigenvectors of
// these nearly isotropic inputs turn with the last bits of their moments.
TEST_F(BatchLayers, QuantisedLayersAreThoseOfSingleSamples) {
  ThreadPool pool(2);
  for (const char* model : {"llama-gqa", "qwen3-moe"}) {
    open(model);
    const ModelConfig& config = source_->config();
    const Recipe recipe = load_recipe("quatrain", {"transform.value=none", "transform.key=none",
                                                   "transform.inputs=none", "transform.down=none"});
    const QuantizationPlan plan = plan_quantization(config, recipe);
    CalibrationStreams singles{one_by_one(), one_by_one(), {}}, batches{together(), together(), {}};
    const QuantizedLayer a = quantize_layer(layer(0), config, recipe, plan.config, singles, pool),
                         b = quantize_layer(layer(kTokens), config, recipe, plan.config, batches, pool);
    EXPECT_NEAR(b.stream_error, a.stream_error, 0.02 * a.stream_error) << model;
    EXPECT_LT(distance(torch::cat(batches.exact), torch::cat(singles.exact)), 1e-5) << model;
    ASSERT_EQ(a.linears.size(), b.linears.size());
    size_t same = 0, all = 0;
    for (size_t i = 0; i < a.linears.size(); ++i) {
      const std::vector<uint8_t>&x = a.linears[i].planes.hi, &y = b.linears[i].planes.hi;
      ASSERT_EQ(x.size(), y.size());
      for (size_t j = 0; j < x.size(); ++j) same += x[j] == y[j] ? 1 : 0;
      all += x.size();
    }
    EXPECT_GE(same, all * 98 / 100) << model;
  }
}

}  // namespace
}  // namespace quatrain
