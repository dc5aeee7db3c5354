// The engine's smaller parts: expert routing, the KV pool, linears that share an input, online transforms.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/hadamard_matrix.h"
#include "engine/expert_routing.h"
#include "engine/kv_pool.h"
#include "engine/linear.h"
#include "engine/transform.h"
#include "models_for_tests.h"

namespace quatrain {
namespace {

Transform transform_of(const std::string& kind, int64_t order, uint64_t seed) {
  Transform transform;
  transform.kind = kind;
  transform.order = order;
  transform.seed = seed;
  return transform;
}

TEST(ExpertRouting, TakesTheTopExpertsAndRenormalises) {
  const std::vector<float> logits = {0, 1, 2, 1, /**/ 3, 0, 0, 0};
  const MoeConfig moe{.experts = 4, .experts_per_token = 2, .intermediate = 1, .normalize_top_k = true};
  const ExpertRouting routing = route_to_experts(logits, moe, "layer 0");
  ASSERT_EQ(routing[2].size(), 1u);
  EXPECT_NEAR(routing[2][0].weight, 1 / (1 + std::exp(-1.0)), 1e-6);
  ASSERT_EQ(routing[1].size(),
            2u);  // of equals the lower: expert 1 before 3 in row 0, before 2 and 3 in row 1
  EXPECT_EQ(routing[1][0].row, 0);
  EXPECT_NEAR(routing[1][0].weight, 1 / (1 + std::exp(1.0)), 1e-6);
  EXPECT_EQ(routing[1][1].row, 1);
  EXPECT_TRUE(routing[3].empty());
  MoeConfig plain = moe;
  plain.normalize_top_k = false;
  const double sum = 1 + 2 * std::exp(1.0) + std::exp(2.0);
  EXPECT_NEAR(route_to_experts(logits, plain, "layer 0")[2][0].weight, std::exp(2.0) / sum, 1e-6);
  EXPECT_THROW(route_to_experts(std::vector<float>{0, NAN, 0, 0}, moe, "layer 0"), Error);
}

TEST(KvPool, ReusesPagesAndKeepsTheLimit) {
  KvPool pool(256, 200);  // four pages
  const int64_t a = pool.add_sequence(), b = pool.add_sequence();
  pool.reserve(pool.sequence(a), 130);
  EXPECT_EQ(pool.pages_in_use(), 3);
  pool.sequence(a).length = 130;
  EXPECT_THROW(pool.reserve(pool.sequence(b), 65), Error);
  EXPECT_EQ(pool.pages_in_use(), 3);
  EXPECT_TRUE(pool.sequence(b).pages.empty());
  std::byte* last = pool.sequence(a).pages.back();
  pool.truncate(pool.sequence(a), 64);
  EXPECT_EQ(pool.pages_in_use(), 1);
  pool.reserve(pool.sequence(b), 192);
  EXPECT_EQ(pool.pages_in_use(), 4);
  EXPECT_NE(std::ranges::find(pool.sequence(b).pages, last), pool.sequence(b).pages.end());
  pool.remove_sequence(a);
  EXPECT_EQ(pool.pages_in_use(), 3);
  EXPECT_THROW(pool.sequence(a), Error);
  EXPECT_NE(pool.add_sequence(), a);
  EXPECT_THROW(KvPool(256, -1), Error);
}

TEST(KvPool, PagesStartAsZeros) {
  KvPool pool(4096, 0);
  const int64_t id = pool.add_sequence();
  pool.reserve(pool.sequence(id), 640);
  for (const std::byte* page : pool.sequence(id).pages)
    for (int i = 0; i < 4096; ++i) ASSERT_EQ(page[i], std::byte{0});
}

// Outputs of q, k, v together equal those of each alone, bit for bit, however their policies differ.
TEST(LinearGroup, FusedLinearsGiveWhatEachGives) {
  ModelConfig config = small_config();
  config.qkv_bias = config.output_bias = true;  // what attention_bias of this architecture means
  const MemoryCheckpoint model(config);
  ThreadPool pool(2);
  const std::vector<LinearShape> all = linears_of_layer(config, 0);
  for (const int variant : {0, 1, 2, 3}) {
    SCOPED_TRACE(variant);
    QuantizationConfig quantization = test_quantization();
    LinearPolicy& key = quantization.linears[all[1].name] = quantization.defaults;
    if (variant == 1) key.activation.bits = 8;
    if (variant == 2) key.input_transform = transform_of("grouped-hadamard", 32, 5);
    if (variant == 3) key.weight_group = 16, key.residual_block = 16;
    TemporaryFolder folder;
    write_artifact(model, quantization, folder.path() / "artifact");
    const auto source = artifact_source(folder.path() / "artifact");
    const LinearGroup fused(*source, std::span(all).first(3), pool);
    EXPECT_EQ(fused.inputs(), 64);
    EXPECT_EQ(fused.outputs(), 128);
    const auto x = MemoryCheckpoint(config, 77).tensors()["model.embed_tokens.weight"].values;
    LinearScratch scratch;
    std::vector<float> together(10 * 128);
    fused.run(x.data(), 10, 64, pool, scratch, together.data(), 128, Operator::Qkv);
    int64_t offset = 0;
    for (int64_t i = 0; i < 3; ++i) {
      const LinearGroup one(*source, std::span(all).subspan(static_cast<size_t>(i), 1), pool);
      std::vector<float> alone(static_cast<size_t>(10 * one.outputs()));
      one.run(x.data(), 10, 64, pool, scratch, alone.data(), one.outputs(), Operator::Qkv);
      for (int64_t t = 0; t < 10; ++t)
        for (int64_t o = 0; o < one.outputs(); ++o)
          ASSERT_EQ(together[static_cast<size_t>(t * 128 + offset + o)],
                    alone[static_cast<size_t>(t * one.outputs() + o)]);
      offset += one.outputs();
    }
  }
}

TEST(LinearGroup, TransformsTheInputBeforeItIsQuantised) {
  const ModelConfig config = small_config();
  const MemoryCheckpoint model(config);
  ThreadPool pool(2);
  const std::vector<LinearShape> all = linears_of_layer(config, 0);
  const auto group_with = [&](const Transform& transform) {
    QuantizationConfig quantization = test_quantization();
    quantization.defaults.input_transform = transform;
    TemporaryFolder folder;
    write_artifact(model, quantization, folder.path() / "artifact");
    return LinearGroup(*artifact_source(folder.path() / "artifact"), std::span(all).first(3), pool);
  };
  const Transform transform = transform_of("grouped-offset-hadamard", 32, 5);
  auto x = MemoryCheckpoint(config, 77).tensors()["model.embed_tokens.weight"].values;
  const std::vector<float> before = x;
  LinearScratch scratch;
  std::vector<float> online(10 * 128), by_hand(10 * 128);
  group_with(transform).run(x.data(), 10, 64, pool, scratch, online.data(), 128, Operator::Qkv);
  EXPECT_EQ(x, before);
  make_transform(transform, 64, "site")->apply(x.data(), 10, 64, 0, 1);
  group_with({}).run(x.data(), 10, 64, pool, scratch, by_hand.data(), 128, Operator::Qkv);
  EXPECT_EQ(online, by_hand);
}

TEST(Transform, AppliesTheHadamardMatrix) {
  for (const auto& [kind, order, offset] : {std::tuple<std::string, int64_t, bool>{"hadamard", 96, false},
                                            {"grouped-hadamard", 32, false},
                                            {"grouped-offset-hadamard", 48, true}}) {
    const auto transform = make_transform(transform_of(kind, order, 9), 96, "site");
    std::vector<float> x(2 * 100);
    std::iota(x.begin(), x.end(), -70.0f);
    const std::vector<float> before = x;
    transform->apply(x.data(), 2, 100, 0, transform->parts());
    const auto matrix = hadamard_matrix(order);
    const auto signs = hadamard_signs(96, order, 9, offset);
    for (int64_t row = 0; row < 2; ++row)
      for (int64_t j = 0; j < 96; ++j) {
        double sum = 0;
        for (int64_t i = 0; i < order; ++i) {
          const auto at = static_cast<size_t>(j / order * order + i);
          sum += static_cast<double>(before[static_cast<size_t>(row * 100) + at]) * signs[at] *
                 matrix[static_cast<size_t>(i * order + j % order)];
        }
        EXPECT_NEAR(x[static_cast<size_t>(row * 100 + j)], sum / std::sqrt(static_cast<double>(order)), 1e-3);
      }
    for (int64_t j = 96; j < 100; ++j) EXPECT_EQ(x[static_cast<size_t>(j)], before[static_cast<size_t>(j)]);
  }
  EXPECT_EQ(make_transform({}, 64, "site"), nullptr);
  EXPECT_THROW(make_transform(transform_of("kronecker", 0, 0), 64, "site"), Error);
  EXPECT_THROW(make_transform(transform_of("hadamard", 0, 0), 64, "site"), Error);
  EXPECT_THROW(make_transform(transform_of("grouped-hadamard", 48, 0), 64, "site"), Error);
}

}  // namespace
}  // namespace quatrain
