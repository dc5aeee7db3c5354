// --batch-invariant: a sequence's logits are the same, bit for bit, whatever shares its passes and however
// its tokens are split into them, by the kernels of every GPU.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/cuda/cuda_engine.h"
#include "engine/models_for_tests.h"
#include "model/checkpoint.h"
#include "ops/cuda/gpu.h"

namespace quatrain {
namespace {

using Logits = BatchItem::Logits;

ModelConfig config_of(int64_t head_dim) {
  ModelConfig config = small_config();
  config.head_dim = head_dim;
  config.attention_scale = 1 / std::sqrt(static_cast<float>(head_dim));
  config.hidden = 512;  // long enough for products to be split
  config.intermediate = 1152;
  return config;
}

std::unique_ptr<Engine> load(const fs::path& folder, bool invariant) {
  EngineOptions options;
  options.device = "cuda";
  options.kv_tokens = 8192;
  options.batch_invariant = invariant;
  return Engine::load(folder, options);
}

// All logits of `ids`, whose tokens go in as `pieces` say, beside as many tokens of another sequence as
// `beside` says at each piece.
std::vector<float> logits_of(Engine& engine, const std::vector<int32_t>& ids,
                             const std::vector<int64_t>& pieces, const std::vector<int64_t>& beside) {
  const auto others = random_ids(1000, engine.config().vocabulary, 99);
  const int64_t sequence = engine.new_sequence(), other = engine.new_sequence();
  std::vector<float> all;
  int64_t first = 0, first_other = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    std::vector<BatchItem> batch;
    if (beside[i] > 0)
      batch.push_back(
          {other, std::span(others).subspan(static_cast<size_t>(first_other), static_cast<size_t>(beside[i])),
           Logits::Last});
    batch.push_back({sequence,
                     std::span(ids).subspan(static_cast<size_t>(first), static_cast<size_t>(pieces[i])),
                     Logits::All});
    const int64_t own = std::ssize(batch) - 1;
    engine.forward(batch, [&](int64_t item, int64_t, std::span<const float> row) {
      if (item == own) all.insert(all.end(), row.begin(), row.end());
    });
    first += pieces[i];
    first_other += beside[i];
  }
  engine.free_sequence(sequence);
  engine.free_sequence(other);
  return all;
}

void expect_invariant(const fs::path& folder) {
  const auto engine = load(folder, true);
  const auto ids = random_ids(150, engine->config().vocabulary, 4);
  const std::vector<float> alone = logits_of(*engine, ids, {150}, {0});
  EXPECT_EQ(logits_of(*engine, ids, {150}, {150}), alone) << "a prompt beside a prompt";
  EXPECT_EQ(logits_of(*engine, ids, {150}, {1}), alone) << "a prompt beside a token";
  EXPECT_EQ(logits_of(*engine, ids, {70, 7, 1, 72}, {0, 40, 200, 3}), alone) << "a prompt in pieces";
  std::vector<int64_t> pieces(21, 1),
      beside = {0, 1, 5, 15, 16, 17, 31, 33, 40, 63, 64, 65, 2, 90, 1, 0, 20, 8, 7, 1, 3};
  pieces.front() = 130;
  EXPECT_EQ(logits_of(*engine, ids, pieces, beside), alone) << "decoding";
}

std::vector<std::pair<std::string, QuantizationConfig>> quantizations() {
  QuantizationConfig four = test_quantization();
  four.defaults.weight_group = 0;
  four.defaults.residual_block = 128;
  four.defaults.activation = {.bits = 4, .group = 128, .symmetric = false};
  QuantizationConfig eight = test_quantization();
  eight.defaults.activation.bits = 8;
  eight.kv.bits = 8;
  return {{"W4A4KV4, groups of 128", four}, {"groups of the defaults, A8KV8", eight}};
}

TEST(BatchInvariant, In16Bits) {
  const TemporaryFolder folder;
  const MemoryCheckpoint model(config_of(64));
  EngineOptions options;
  options.device = "cuda";
  options.kv_tokens = 8192;
  options.batch_invariant = true;
  const auto engine = make_cuda_engine(checkpoint_source(std::make_unique<MemoryCheckpoint>(model)), options);
  const auto ids = random_ids(150, engine->config().vocabulary, 4);
  const std::vector<float> alone = logits_of(*engine, ids, {150}, {0});
  EXPECT_EQ(logits_of(*engine, ids, {150}, {200}), alone);
  EXPECT_EQ(logits_of(*engine, ids, {70, 7, 1, 72}, {0, 40, 200, 3}), alone);
}

TEST(BatchInvariant, Artifacts) {
  for (const auto& [name, quantization] : quantizations()) {
    SCOPED_TRACE(name);
    const TemporaryFolder folder;
    write_artifact(MemoryCheckpoint(config_of(64)), quantization, folder.path() / "artifact");
    expect_invariant(folder.path() / "artifact");
  }
}

TEST(BatchInvariant, WithoutItTheBatchShows) {
  // Else the tests above would show nothing.
  const TemporaryFolder folder;
  write_artifact(MemoryCheckpoint(config_of(64)), quantizations()[0].second, folder.path() / "artifact");
  const auto engine = load(folder.path() / "artifact", false);
  const auto ids = random_ids(150, engine->config().vocabulary, 4);
  EXPECT_NE(logits_of(*engine, ids, {70, 7, 1, 72}, {0, 40, 200, 3}), logits_of(*engine, ids, {150}, {0}));
}

// The kernels of Ampere, Ada (4-bit products, emulated where this runs) and RTX 50, chosen as on such a GPU.
TEST(OtherGpus, TheEngineTakesTheirKernels) {
  for (const auto& [name, quantization] : quantizations()) {
    SCOPED_TRACE(name);
    const TemporaryFolder folder;
    write_artifact(MemoryCheckpoint(config_of(64)), quantization, folder.path() / "artifact");
    const auto own = load(folder.path() / "artifact", true);
    const auto ids = random_ids(150, own->config().vocabulary, 4);
    const std::vector<int64_t> pieces = {130, 5, 1, 1, 13}, beside = {0, 3, 20, 0, 100};
    const std::vector<float> expected = logits_of(*own, ids, pieces, beside);
    for (const ops::GpuKernels kernels : {ops::GpuKernels::Nibbles, ops::GpuKernels::Bytes}) {
      ops::use_gpu_kernels(kernels);
      // The same integers, scaled alike and added in the same order: the same bits as this GPU's own kernels.
      EXPECT_EQ(logits_of(*load(folder.path() / "artifact", true), ids, pieces, beside), expected);
      expect_invariant(folder.path() / "artifact");
      // In their own order, close.
      const std::vector<float> fast =
          logits_of(*load(folder.path() / "artifact", false), ids, pieces, beside);
      double difference = 0, norm = 0;
      for (size_t i = 0; i < fast.size(); ++i) {
        difference += std::pow(static_cast<double>(fast[i]) - expected[i], 2);
        norm += std::pow(static_cast<double>(expected[i]), 2);
      }
      EXPECT_LT(std::sqrt(difference / norm), 0.25);  // as far as 4-bit codes flip (cuda_engine_test.cpp)
      ops::use_gpu_kernels({});
    }
  }
}

}  // namespace
}  // namespace quatrain
