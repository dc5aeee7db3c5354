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

TEST(KvPool, UnquantisedPagesAreHeldWhereTheyAreRead) {
  KvPool pool(256, 64 * 100, 1024, {.sink = 70, .recent = 10});
  KvSequence& sequence = pool.sequence(pool.add_sequence());
  const auto held = [&] {
    std::vector<int64_t> pages;
    for (int64_t page = 0; page < std::ssize(sequence.exact); ++page)
      if (sequence.exact[static_cast<size_t>(page)] != nullptr) pages.push_back(page);
    EXPECT_EQ(pool.exact_pages_in_use(), std::ssize(pages));
    return pages;
  };
  using Pages = std::vector<int64_t>;
  pool.reserve(sequence, 640);
  pool.hold_exact(sequence, 0, 640);
  sequence.length = 640;
  EXPECT_EQ(std::ssize(held()), 10);
  pool.trim_exact(sequence, 0);  // the first two, and the last 10 + 256 tokens
  EXPECT_EQ(held(), (Pages{0, 1, 5, 6, 7, 8, 9}));
  pool.reserve(sequence, 1280);
  pool.hold_exact(sequence, 640, 1280);
  sequence.length = 1280;
  pool.trim_exact(sequence, 640);  // which may come back, with the 10 tokens before it
  EXPECT_EQ(held(), (Pages{0, 1, 9, 15, 16, 17, 18, 19}));
  EXPECT_EQ(pool.cuttable(sequence, 1280), 1280);
  EXPECT_EQ(pool.cuttable(sequence, 64 * 15 + 10), 64 * 15 + 10);
  EXPECT_EQ(pool.cuttable(sequence, 64 * 15 + 9), 70);
  EXPECT_EQ(pool.cuttable(sequence, 60), 60);
  EXPECT_THROW(pool.truncate(sequence, 64 * 15 + 9), Error);
  EXPECT_EQ(sequence.length, 1280);
  pool.truncate(sequence, 64 * 16 + 1);
  EXPECT_EQ(held(), (Pages{0, 1, 9, 15, 16}));
  pool.truncate(sequence, 0);
  EXPECT_EQ(held(), Pages{});
  EXPECT_EQ(pool.pages_in_use(), 0);
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
    fused.run({x.data(), 64, {}}, 10, pool, scratch, together.data(), 128, Operator::Qkv);
    int64_t offset = 0;
    for (int64_t i = 0; i < 3; ++i) {
      const LinearGroup one(*source, std::span(all).subspan(static_cast<size_t>(i), 1), pool);
      std::vector<float> alone(static_cast<size_t>(10 * one.outputs()));
      one.run({x.data(), 64, {}}, 10, pool, scratch, alone.data(), one.outputs(), Operator::Qkv);
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
  group_with(transform).run({x.data(), 64, {}}, 10, pool, scratch, online.data(), 128, Operator::Qkv);
  EXPECT_EQ(x, before);
  make_transform(transform, 64, "site")->apply(x.data(), 10, 64, 0, 1);
  group_with({}).run({x.data(), 64, {}}, 10, pool, scratch, by_hand.data(), 128, Operator::Qkv);
  EXPECT_EQ(online, by_hand);
}

// Gate, transform and codes in one pass give what they give one after the other, for few rows that are shared
// out by columns and for many, whatever the threads.
TEST(LinearInput, OnePassEqualsStepAfterStep) {
  const int64_t width = 96;
  SplitMix64 random(4);
  std::vector<float> x(50 * 2 * width);
  for (float& value : x) value = static_cast<float>(random.normal());
  for (const auto& [kind, order, group] : {std::tuple<std::string, int64_t, int64_t>{"none", 0, 32},
                                           {"none", 0, 0},
                                           {"hadamard", 96, 32},
                                           {"grouped-hadamard", 32, 64},
                                           {"grouped-hadamard", 16, 24}})
    for (const bool gated : {false, true})
      for (const int threads : {1, 3})
        for (const int64_t rows : {1, 2, 13, 50}) {
          SCOPED_TRACE(fmt::format("{} {} {} {} {} {}", kind, order, group, gated, threads, rows));
          const ActivationPolicy policy{4, group, false};
          const auto transform = make_transform(transform_of(kind, order, 9), width, "site");
          std::vector<float> expected(static_cast<size_t>(rows * width));
          for (int64_t row = 0; row < rows; ++row) {
            const float* from = x.data() + row * 2 * width;
            float* to = expected.data() + row * width;
            if (gated)
              ops::gated_activation(ops::GateFunction::Silu, from, from + width, width, to);
            else
              std::copy_n(from, width, to);
          }
          if (transform) transform->apply(expected.data(), rows, width, 0, transform->parts());
          ThreadPool alone(1), pool(threads);
          ops::QuantizedActivations codes;
          ops::quantize_activations(expected.data(), rows, width, width, policy, "site", alone, codes);

          LinearScratch scratch;
          LinearInput input{x.data(), 2 * width, {}};
          if (gated) input.gate = ops::GateFunction::Silu;
          const LinearInput values = prepare_input(
              input, rows, width, {transform.get(), &policy, "site", Operator::Down}, pool, scratch);
          for (int64_t row = 0; row < rows; ++row)
            for (int64_t k = 0; k < width; ++k)
              ASSERT_EQ(values.x[row * values.stride + k], expected[static_cast<size_t>(row * width + k)]);
          const auto equal = [](const auto& a, const auto& b) {
            return std::equal(a.span().begin(), a.span().end(), b.span().begin(), b.span().end());
          };
          EXPECT_TRUE(equal(scratch.quantized.codes, codes.codes));
          EXPECT_TRUE(equal(scratch.quantized.scale, codes.scale));
          EXPECT_TRUE(equal(scratch.quantized.zero, codes.zero));
        }
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
