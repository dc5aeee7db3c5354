// The CUDA engine against the CPU engine on models in memory and on a trained one: every architecture, 16-bit
// and quantised, prompts, batches, decoding, errors.
#include "engine/cuda/cuda_engine.h"

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "base/error.h"
#include "engine/cpu_engine.h"
#include "engine/generate.h"
#include "engine/models_for_tests.h"
#include "model/checkpoint.h"
#include "support/logits.h"
#include "support/shared.h"

namespace quatrain {
namespace {

using Logits = BatchItem::Logits;

std::unique_ptr<WeightSource> source_of(const MemoryCheckpoint& model) {
  return checkpoint_source(std::make_unique<MemoryCheckpoint>(model));
}

EngineOptions on_gpu() {
  EngineOptions options;
  options.device = "cuda";
  options.kv_tokens = 8192;
  return options;
}

TEST(CudaEngine, AgreesWithTheCpuIn16Bits) {
  for (const auto& [name, config] : test_architectures()) {
    SCOPED_TRACE(name);
    const MemoryCheckpoint model(config);
    const auto ids = random_ids(150, config.vocabulary, 2);
    const auto expected = all_logits(*make_cpu_engine(source_of(model), {.threads = 2}), ids, 150);
    const auto engine = make_cuda_engine(source_of(model), on_gpu());
    // The CPU's KV cache is FP32, the GPU's FP16: 2^-11 a value; FP32 sums differ by far less.
    for (const int64_t piece : {150, 37, 1})
      EXPECT_LT(relative_distance(all_logits(*engine, ids, piece), expected), 2e-3) << piece;
  }
}

// The vocabulary is wider than a block of the kernel and no multiple of it.
TEST(CudaEngine, GivesTargetsTheLogProbabilitiesOfTheLogits) {
  ModelConfig config = small_config();
  config.vocabulary = 1500;
  const auto engine = make_cuda_engine(source_of(MemoryCheckpoint(config)), on_gpu());
  const auto ids = random_ids(150, config.vocabulary, 2), targets = random_ids(150, config.vocabulary, 3);
  const auto logits = all_logits(*engine, ids, 150);
  const BatchItem item{engine->new_sequence(), ids, Logits::All, targets};
  std::vector<float> found;
  engine->forward({&item, 1},
                  [&](int64_t, int64_t, std::span<const float> value) { found.push_back(value[0]); });
  ASSERT_EQ(found.size(), ids.size());
  for (size_t t = 0; t < found.size(); ++t) {
    const std::span<const float> row(logits.data() + t * 1500, 1500);
    double sum = 0;
    for (const float logit : row) sum += std::exp(double{logit});
    // expf is within 2 ulp, and so is a sum of few rounded partial sums: 1e-6 of a sum moves its logarithm by
    // 1e-6.
    EXPECT_NEAR(found[t], row[static_cast<size_t>(targets[t])] - std::log(sum), 1e-5) << t;
  }
}

// Every head width that a fast attention takes, heads of 20 and 16 columns having gone through the other.
ModelConfig wide_config(int64_t head_dim) {
  ModelConfig config = small_config();
  config.head_dim = head_dim;
  config.attention_scale = 1 / std::sqrt(static_cast<float>(head_dim));
  config.hidden = 256;
  config.intermediate = 384;
  return config;
}

struct Case {
  std::string name;
  ModelConfig config;
  QuantizationConfig quantization;
  double tolerance = 0;  // on the distance of 150 tokens
  int equal = 0;         // of 12 first tokens of a sequence
};

// Codes at the border of two flip where FP32 sums differ in order, and a flip moves what follows by more. The
// CPU engine and the plain reference of tests/engine, two independent sums, are up to 0.16 apart with 4-bit
// activations and 0.03 with 8; a wrong kernel gives about 1. First tokens see no other: before a flip they
// agree. Where a 4-bit cache feeds a quantiser whose groups lie in its own, ties are exact and flips the
// rule.
std::vector<Case> quantized_cases() {
  constexpr double kFourBits = 0.25, kEightBits = 0.05;
  std::vector<Case> cases;
  for (const auto& [name, config] : test_architectures()) {
    cases.push_back({name, config, test_quantization(), kFourBits, 8});
    cases.back().quantization.lm_head_tied = config.tied_embeddings;
    cases.back().quantization.kv.bits = 8;
  }
  for (const int64_t head_dim : {64, 128, 256}) {
    cases.push_back(
        {fmt::format("KV4, heads of {}", head_dim), wide_config(head_dim), test_quantization(), kEightBits});
    cases.back().quantization.defaults.activation.bits = 8;
  }
  Case rows{"row scales, 8-bit rows, KV8 in groups", wide_config(64), test_quantization(), kEightBits};
  rows.quantization.defaults.weight_group = 0;
  rows.quantization.defaults.residual_block = 128;
  rows.quantization.defaults.activation = {.bits = 8, .group = 0, .symmetric = true};
  rows.quantization.kv.bits = 8;
  rows.quantization.kv.group = 16;
  cases.push_back(rows);
  Case rotated{"Hadamard transforms, KV4", wide_config(64), test_quantization(), kEightBits};
  rotated.quantization.defaults.activation.bits = 8;
  rotated.quantization.kv.key_transform = {.kind = "hadamard", .order = 64, .seed = 5};
  const auto down = [](int64_t layer) { return fmt::format("model.layers.{}.mlp.down_proj", layer); };
  rotated.quantization.linears[down(0)] = rotated.quantization.defaults;
  rotated.quantization.linears[down(0)].input_transform = {.kind = "hadamard", .order = 384, .seed = 3};
  rotated.quantization.linears[down(1)] = rotated.quantization.defaults;
  rotated.quantization.linears[down(1)].input_transform = {
      .kind = "grouped-offset-hadamard", .order = 128, .seed = 4};
  cases.push_back(rotated);
  Case narrow{"groups that no integer kernel takes", wide_config(64), test_quantization(), kEightBits};
  narrow.quantization.defaults.weight_group = 16;
  narrow.quantization.defaults.residual_block = 16;
  narrow.quantization.defaults.activation = {.bits = 8, .group = 16, .symmetric = false};
  cases.push_back(narrow);
  Case mixed{"16-bit activations in one linear, 4 bits in another", wide_config(64), test_quantization(),
             kFourBits};
  mixed.quantization.defaults.activation.bits = 8;
  mixed.quantization.linears["model.layers.0.self_attn.k_proj"] = mixed.quantization.defaults;
  mixed.quantization.linears["model.layers.0.self_attn.k_proj"].activation = {};
  mixed.quantization.linears[down(1)] = mixed.quantization.defaults;
  mixed.quantization.linears[down(1)].activation.bits = 4;
  cases.push_back(mixed);
  return cases;
}

TEST(CudaEngine, AgreesWithTheCpuOnArtifacts) {
  for (const Case& one : quantized_cases()) {
    SCOPED_TRACE(one.name);
    const TemporaryFolder folder;
    write_artifact(MemoryCheckpoint(one.config), one.quantization, folder.path() / "artifact");
    const auto ids = random_ids(150, one.config.vocabulary, 3);
    const auto load = [&](const std::string& device) {
      EngineOptions options = on_gpu();
      options.device = device;
      return Engine::load(folder.path() / "artifact", options);
    };
    const auto cpu = load("cpu"), gpu = load("cuda");
    const auto expected = all_logits(*cpu, ids, 150);
    for (const int64_t piece : {150, 37, 1})
      EXPECT_LT(relative_distance(all_logits(*gpu, ids, piece), expected), one.tolerance)
          << "pieces of " << piece;
    int equal = 0;
    for (uint64_t i = 0; i < 12; ++i) {
      const auto first = random_ids(1, one.config.vocabulary, 40 + i);
      equal += relative_distance(all_logits(*gpu, first, 1), all_logits(*cpu, first, 1)) < 1e-3;
    }
    EXPECT_GE(equal, one.equal) << "of 12 first tokens";
  }
}

TEST(CudaEngine, SequencesInOneBatchDoNotMix) {
  const MemoryCheckpoint model(wide_config(64));
  const auto engine = make_cuda_engine(source_of(model), on_gpu());
  const auto a = random_ids(80, 97, 4), b = random_ids(133, 97, 5);
  const auto alone_a = all_logits(*engine, a, 80), alone_b = all_logits(*engine, b, 133);
  const int64_t first = engine->new_sequence(), second = engine->new_sequence();
  std::vector<float> together[2];
  const auto feed = [&](int64_t from_a, int64_t count_a, int64_t from_b, int64_t count_b) {
    const BatchItem batch[2] = {
        {first, std::span(a).subspan(static_cast<size_t>(from_a), static_cast<size_t>(count_a)), Logits::All},
        {second, std::span(b).subspan(static_cast<size_t>(from_b), static_cast<size_t>(count_b)),
         Logits::All}};
    engine->forward(batch, [&](int64_t item, int64_t, std::span<const float> row) {
      together[item].insert(together[item].end(), row.begin(), row.end());
    });
  };
  feed(0, 30, 0, 1);   // a prompt beside a single token
  feed(30, 1, 1, 99);  // the other way round
  for (int64_t t = 0; t < 33; ++t) feed(31 + t, 1, 100 + t, 1);
  feed(64, 16, 133, 0);
  EXPECT_LT(relative_distance(together[0], alone_a), 2e-3);
  EXPECT_LT(relative_distance(together[1], alone_b), 2e-3);
  engine->truncate(first, 40);
  std::vector<float> again;
  const BatchItem item{first, std::span(a).subspan(40), Logits::All};
  engine->forward({&item, 1}, [&](int64_t, int64_t, std::span<const float> row) {
    again.insert(again.end(), row.begin(), row.end());
  });
  EXPECT_LT(relative_distance(again, std::span(alone_a).subspan(40 * 97)), 2e-3);
}

TEST(CudaEngine, DecodesGreedilyWithoutTheHost) {
  const TemporaryFolder folder;
  write_artifact(MemoryCheckpoint(wide_config(64)), test_quantization(), folder.path() / "artifact");
  EngineOptions options = on_gpu();
  const auto engine = Engine::load(folder.path() / "artifact", options);
  std::vector<int64_t> sequences;
  std::vector<int32_t> next;
  std::vector<std::vector<int32_t>> expected(3);
  for (size_t i = 0; i < 3; ++i) {
    const auto prompt = random_ids(20 + 30 * static_cast<int64_t>(i), 97, 6 + i);
    for (const bool reference : {true, false}) {
      const int64_t sequence = engine->new_sequence();
      int32_t token = 0;
      const auto feed = [&](std::span<const int32_t> tokens) {
        const BatchItem item{sequence, tokens, Logits::Last};
        engine->forward({&item, 1}, [&](int64_t, int64_t, std::span<const float> row) {
          token = static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
        });
      };
      feed(prompt);
      if (!reference) {
        sequences.push_back(sequence);
        next.push_back(token);
        continue;
      }
      for (int step = 0; step < 60; ++step) {
        const int32_t fed = token;
        feed({&fed, 1});
        expected[i].push_back(token);
      }
    }
  }
  const auto found = dynamic_cast<GreedyEngine&>(*engine).greedy(sequences, next, 60);
  ASSERT_EQ(found.size(), 180u);
  int equal = 0;
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(engine->length(sequences[i]), 20 + 30 * static_cast<int64_t>(i) + 60);
    // Split and tile counts follow the batch, so a token near a tie may differ, and all after it.
    for (size_t step = 0; step < 60 && found[3 * step + i] == expected[i][step]; ++step) ++equal;
  }
  EXPECT_GT(equal, 60);
}

TEST(CudaEngine, TellsTheStoryOfATrainedModel) {
  const auto shared = shared_dir();
  if (!shared) GTEST_SKIP() << "no shared fixtures";
  const fs::path folder = *shared / "data/models/stories260K";
  const std::string page = read_file(folder / "stories260K.md");
  const size_t begin = page.find('\n', page.find("-t 0.0\n")) + 1;
  const std::string story = page.substr(begin, page.find("\n```", begin) - begin);
  const auto engine = Engine::load(folder / "stories260K.bin", on_gpu());
  const auto tokenizer = load_model_tokenizer(folder / "stories260K.bin");
  const std::vector<int32_t> prompt = {1};
  const Generation told =
      generate(*engine, *tokenizer, engine->new_sequence(), prompt, {.max_tokens = 256, .stop_ids = {1, 2}});
  EXPECT_EQ(told.text, story);
}

TEST(CudaEngine, NamesWhereValuesBreak) {
  MemoryCheckpoint model(wide_config(64));
  model.tensors().at("model.layers.1.self_attn.o_proj.weight").values[5] =
      std::numeric_limits<float>::quiet_NaN();
  const auto engine = make_cuda_engine(source_of(model), on_gpu());
  const auto ids = random_ids(20, 97, 8);
  const int64_t sequence = engine->new_sequence();
  try {
    const BatchItem item{sequence, ids, Logits::Last};
    engine->forward({&item, 1}, [](int64_t, int64_t, std::span<const float>) {});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("layer 1 attention"), std::string::npos) << error.what();
  }
  EXPECT_EQ(engine->length(sequence), 0);
}

// Runs without a GPU too.
TEST(CudaEngineLoad, SaysWhatIsMissing) {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess && count > 0) GTEST_SKIP() << "there is a GPU";
  try {
    make_cuda_engine(source_of(MemoryCheckpoint(small_config())), on_gpu());
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("--device cpu"), std::string::npos) << error.what();
  }
}

// While it is read, 1 GiB of the GPU goes to somebody else.
class CrowdedCheckpoint : public MemoryCheckpoint {
 public:
  using MemoryCheckpoint::MemoryCheckpoint;
  ~CrowdedCheckpoint() override { cudaFree(taken_); }
  std::vector<float> read(const std::string& name) const override {
    if (taken_ == nullptr) cudaMalloc(&taken_, size_t{1} << 30);
    return MemoryCheckpoint::read(name);
  }

 private:
  mutable void* taken_ = nullptr;
};

TEST(CudaEngine, CountsItsOwnMemoryOnly) {
  EngineOptions options = on_gpu();
  options.gpu_memory = 512 << 20;
  EXPECT_NO_THROW(
      make_cuda_engine(checkpoint_source(std::make_unique<CrowdedCheckpoint>(wide_config(64))), options));
}

TEST(CudaEngine, RefusesTooLittleMemory) {
  const MemoryCheckpoint model(wide_config(64));
  EngineOptions options = on_gpu();
  options.gpu_memory = 1 << 20;
  try {
    make_cuda_engine(source_of(model), options);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("--gpu-memory"), std::string::npos) << error.what();
  }
  options = on_gpu();
  options.device = "cuda:99";
  EXPECT_THROW(make_cuda_engine(source_of(model), options), Error);
}

}  // namespace
}  // namespace quatrain
