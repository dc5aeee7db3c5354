// The engine on models in memory: against the equations, and that a token's result follows from its sequence
// alone.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "engine/cpu_engine.h"
#include "models_for_tests.h"
#include "naive_forward.h"
#include "support/logits.h"

namespace quatrain {
namespace {

using Logits = BatchItem::Logits;

std::unique_ptr<Engine> engine_of(const MemoryCheckpoint& model,
                                  const EngineOptions& options = {.threads = 2}) {
  return make_cpu_engine(checkpoint_source(std::make_unique<MemoryCheckpoint>(model)), options);
}

TEST(Engine, ComputesTheEquations) {
  for (const auto& [name, config] : test_architectures()) {
    SCOPED_TRACE(name);
    const MemoryCheckpoint model(config);
    const auto ids = random_ids(90, config.vocabulary, 2);
    // FP32 roundings, some hundred deep, each 6e-8 of a term: 1e-5 leaves room; a wrong term gives above
    // 1e-2.
    EXPECT_LT(relative_distance(all_logits(*engine_of(model), ids, 1000), naive_logits(model, {}, ids)),
              1e-5);
  }
}

TEST(Engine, ComputesTheEquationsOfArtifacts) {
  for (const auto& [name, config] : test_architectures()) {
    SCOPED_TRACE(name);
    const MemoryCheckpoint model(config);
    QuantizationConfig quantization = test_quantization();
    quantization.linears["lm_head"] = quantization.defaults;
    quantization.linears["lm_head"].activation = {.bits = 8, .group = 64, .symmetric = true};
    quantization.lm_head_tied = config.tied_embeddings;
    quantization.linears["model.layers.0.self_attn.k_proj"] = quantization.defaults;  // splits q, k, v
    quantization.linears["model.layers.0.self_attn.k_proj"].activation = {
        .bits = 8, .group = 0, .symmetric = false};
    quantization.linears["model.layers.1.self_attn.o_proj"] = quantization.defaults;  // dequantised
    quantization.linears["model.layers.1.self_attn.o_proj"].activation = {};
    quantization.kv_layers[0].bits = 8;
    quantization.kv_layers[0].group = config.head_dim / 2;
    quantization.kv_layers[0].symmetric = true;
    TemporaryFolder folder;
    const MemoryCheckpoint seen = write_artifact(model, quantization, folder.path() / "artifact");
    const auto ids = random_ids(90, config.vocabulary, 3);
    const auto engine = Engine::load(folder.path() / "artifact", {.threads = 2});
    const std::vector<float> logits = all_logits(*engine, ids, 1000);
    // A value at the border of two codes may round either way after FP32 sums of another order; one such step
    // is about 1e-2 of a row, and rows are 90. Without the quantisers the distance is above 0.1.
    EXPECT_LT(relative_distance(logits, naive_logits(seen, quantization, ids)), 0.03);
    EXPECT_GT(relative_distance(logits, naive_logits(seen, {}, ids)), 0.1);
  }
}

// Embedding and head, each in planes or not, tied or not: all read by their own names.
TEST(Engine, ReadsEveryPairOfEmbeddingAndHead) {
  for (const bool tied : {false, true})
    for (const int embedding_bits : {8, 16})
      for (const int head_bits : {8, 16}) {
        ModelConfig config = small_config();
        config.tied_embeddings = tied;
        MemoryCheckpoint model(config);
        QuantizationConfig quantization = test_quantization();
        quantization.defaults.activation = {};
        quantization.kv.bits = 16;
        quantization.embedding_bits = embedding_bits;
        quantization.lm_head_bits = head_bits;
        quantization.lm_head_tied = tied && embedding_bits == head_bits;
        quantization.linears["lm_head"] = quantization.defaults;
        // A tied model whose head has other bits than its embedding stores the head beside it.
        if (tied && !quantization.lm_head_tied)
          model.tensors()["lm_head.weight"] = model.tensors()["model.embed_tokens.weight"];
        TemporaryFolder folder;
        MemoryCheckpoint seen = write_artifact(model, quantization, folder.path() / "artifact");
        MemoryCheckpoint untied = seen;
        if (!seen.tensors().contains("lm_head.weight"))
          untied.tensors()["lm_head.weight"] = seen.tensors()["model.embed_tokens.weight"];
        untied.untie();
        const auto ids = random_ids(20, config.vocabulary, 14);
        const auto logits = all_logits(*Engine::load(folder.path() / "artifact"), ids, 20);
        EXPECT_LT(relative_distance(logits, naive_logits(untied, quantization, ids)), 1e-5)
            << tied << " " << embedding_bits << " " << head_bits;
      }
}

// Bit for bit: one call, token by token, odd pieces, small chunks, other threads.
TEST(Engine, PiecesAndThreadsChangeNothing) {
  struct Variant {
    bool quantized;
    int64_t sink, recent;
  };
  for (const auto& [name, config] : test_architectures())
    for (const auto& [quantized, sink, recent] :
         {Variant{false, 0, 0}, Variant{true, 0, 0}, Variant{true, 5, 0}, Variant{true, 70, 30}}) {
      SCOPED_TRACE(
          fmt::format("{}{}, {} and {} unquantised", name, quantized ? ", artifact" : "", sink, recent));
      const MemoryCheckpoint model(config);
      TemporaryFolder folder;
      if (quantized) {
        QuantizationConfig quantization = test_quantization();
        quantization.lm_head_tied = config.tied_embeddings;
        write_artifact(model, quantization, folder.path() / "artifact");
      }
      const auto load = [&](EngineOptions options) {
        options.kv_sink = sink;
        options.kv_recent = recent;
        return quantized ? Engine::load(folder.path() / "artifact", options) : engine_of(model, options);
      };
      const auto ids = random_ids(300, config.vocabulary, 4);
      const auto expected = all_logits(*load({.threads = 1}), ids, 300);
      EXPECT_EQ(all_logits(*load({.threads = 2}), ids, 300), expected) << "a thread takes some of the tokens";
      const auto engine = load({.threads = 3, .prefill_chunk = 37});
      for (const int64_t piece : {1, 7, 64, 101, 300})
        EXPECT_EQ(all_logits(*engine, ids, piece), expected) << piece;
    }
}

TEST(Engine, OtherSequencesChangeNothing) {
  for (const auto& [name, config] : test_architectures()) {
    SCOPED_TRACE(name);
    const MemoryCheckpoint model(config);
    TemporaryFolder folder;
    QuantizationConfig quantization = test_quantization();
    quantization.lm_head_tied = config.tied_embeddings;
    write_artifact(model, quantization, folder.path() / "artifact");
    const auto engine = Engine::load(folder.path() / "artifact",
                                     {.threads = 2, .prefill_chunk = 50, .kv_sink = 5, .kv_recent = 30});

    std::vector<std::vector<int32_t>> ids;
    std::vector<std::vector<float>> expected, found(5);
    std::vector<int64_t> sequences;
    for (size_t s = 0; s < 5; ++s) {
      ids.push_back(random_ids(20 + 37 * static_cast<int64_t>(s), config.vocabulary, 5 + s));
      expected.push_back(all_logits(*engine, ids.back(), 1000));
      sequences.push_back(engine->new_sequence());
    }
    for (size_t fed[5] = {}; true;) {  // every sequence at its own pace
      std::vector<BatchItem> batch;
      for (size_t s = 0; s < 5; ++s) {
        const size_t count = std::min(1 + (7 * s + fed[s]) % 23, ids[s].size() - fed[s]);
        batch.push_back({sequences[s], {ids[s].data() + fed[s], count}, Logits::All});
        fed[s] += count;
      }
      int64_t last_item = 0;
      engine->forward(batch, [&](int64_t item, int64_t, std::span<const float> row) {
        EXPECT_GE(item, last_item);
        last_item = item;
        auto& logits = found[static_cast<size_t>(item)];
        logits.insert(logits.end(), row.begin(), row.end());
      });
      if (std::ranges::all_of(batch, [](const BatchItem& item) { return item.tokens.empty(); })) break;
    }
    for (size_t s = 0; s < 5; ++s) EXPECT_EQ(found[s], expected[s]) << "sequence " << s;
  }
}

TEST(Engine, GivesTheLogitsThatAreAskedFor) {
  const MemoryCheckpoint model(small_config());
  const auto engine = engine_of(model, {.threads = 1, .prefill_chunk = 8});
  const auto ids = random_ids(20, 97, 9);
  const auto expected = all_logits(*engine, ids, 20);
  const int64_t none = engine->new_sequence(), last = engine->new_sequence(), all = engine->new_sequence();
  const std::vector<BatchItem> batch = {
      {none, ids, Logits::None}, {last, ids, Logits::Last}, {all, ids, Logits::All}};
  std::vector<std::pair<int64_t, int64_t>> calls;
  engine->forward(batch, [&](int64_t item, int64_t token, std::span<const float> row) {
    calls.emplace_back(item, token);
    EXPECT_TRUE(std::equal(row.begin(), row.end(), expected.begin() + token * 97));
  });
  ASSERT_EQ(calls.size(), 21u);
  EXPECT_EQ(calls.front(), (std::pair<int64_t, int64_t>{1, 19}));
  for (int64_t t = 0; t < 20; ++t)
    EXPECT_EQ(calls[static_cast<size_t>(t + 1)], (std::pair<int64_t, int64_t>{2, t}));
}

TEST(Engine, GivesTargetsTheLogProbabilitiesOfTheLogits) {
  const MemoryCheckpoint model(small_config());
  const auto engine = engine_of(model, {.threads = 1, .prefill_chunk = 8});
  const auto ids = random_ids(20, 97, 9), targets = random_ids(20, 97, 10);
  const auto expected = all_logits(*engine, ids, 20);
  const int64_t first = engine->new_sequence(), scored = engine->new_sequence(),
                last = engine->new_sequence();
  const std::vector<BatchItem> batch = {
      {first, ids, Logits::All}, {scored, ids, Logits::All, targets}, {last, ids, Logits::Last}};
  std::vector<std::pair<int64_t, int64_t>> calls;
  engine->forward(batch, [&](int64_t item, int64_t token, std::span<const float> values) {
    calls.emplace_back(item, token);
    const std::span<const float> logits(expected.data() + token * 97, 97);
    if (item != 1) {
      EXPECT_TRUE(std::ranges::equal(values, logits));
      return;
    }
    ASSERT_EQ(values.size(), 1u);
    double sum = 0;
    for (const float logit : logits) sum += std::exp(double{logit});
    const auto t = static_cast<size_t>(token);
    EXPECT_NEAR(values[0], logits[static_cast<size_t>(targets[t])] - std::log(sum), 1e-5);
  });
  ASSERT_EQ(calls.size(), 41u);
  EXPECT_TRUE(std::ranges::is_sorted(calls));
  const auto run = [&](std::span<const int32_t> wanted, Logits kind) {
    const BatchItem item{engine->new_sequence(), ids, kind, wanted};
    engine->forward({&item, 1}, [](int64_t, int64_t, std::span<const float>) {});
  };
  EXPECT_THROW(run(std::span(targets).first(19), Logits::All), Error);
  EXPECT_THROW(run(targets, Logits::Last), Error);
  EXPECT_THROW(run(std::vector<int32_t>(20, 97), Logits::All), Error);
}

TEST(Engine, TruncatedSequencesGoOnAsIfNothingHadFollowed) {
  const MemoryCheckpoint model(small_config());
  const auto engine = engine_of(model);
  const auto ids = random_ids(200, 97, 10), detour = random_ids(150, 97, 11);
  const auto expected = all_logits(*engine, ids, 200);
  const int64_t sequence = engine->new_sequence();
  const auto feed = [&](std::span<const int32_t> tokens) {
    std::vector<float> row;
    const BatchItem item{sequence, tokens, Logits::Last};
    engine->forward({&item, 1}, [&](int64_t, int64_t, std::span<const float> logits) {
      row.assign(logits.begin(), logits.end());
    });
    return row;
  };
  feed({ids.data(), 70});
  feed(detour);
  EXPECT_EQ(engine->pages_in_use(), 4);
  engine->truncate(sequence, 70);
  EXPECT_EQ(engine->pages_in_use(), 2);
  EXPECT_EQ(engine->length(sequence), 70);
  EXPECT_EQ(feed({ids.data() + 70, 130}), std::vector<float>(expected.end() - 97, expected.end()));
  engine->truncate(sequence, 0);
  EXPECT_EQ(engine->pages_in_use(), 0);
  EXPECT_THROW(engine->truncate(sequence, 1), Error);
}

// An engine whose sequences keep unquantised tokens, on an artifact with a 4-bit cache.
class UnquantisedTokens : public testing::Test {
 protected:
  UnquantisedTokens() {
    QuantizationConfig quantization = test_quantization();
    write_artifact(model_, quantization, folder_.path() / "artifact");
    quantization.kv.bits = 16;
    write_artifact(model_, quantization, folder_.path() / "kv16");
  }
  std::unique_ptr<Engine> load(int64_t sink, int64_t recent, const char* artifact = "artifact") {
    return Engine::load(folder_.path() / artifact,
                        {.threads = 2, .prefill_chunk = 60, .kv_sink = sink, .kv_recent = recent});
  }
  std::vector<float> feed(Engine& engine, int64_t sequence, std::span<const int32_t> tokens) {
    std::vector<float> row;
    const BatchItem item{sequence, tokens, Logits::Last};
    engine.forward({&item, 1}, [&](int64_t, int64_t, std::span<const float> logits) {
      row.assign(logits.begin(), logits.end());
    });
    return row;
  }

  const MemoryCheckpoint model_{small_config()};
  TemporaryFolder folder_;
  const std::vector<int32_t> ids_ = random_ids(500, 97, 10);
};

TEST_F(UnquantisedTokens, AllOfThemAreAnUnquantisedCache) {
  const std::vector<int32_t> ids(ids_.begin(), ids_.begin() + 150);
  const auto kv16 = all_logits(*load(0, 0, "kv16"), ids, 40), kv4 = all_logits(*load(0, 0), ids, 40);
  EXPECT_EQ(all_logits(*load(150, 0), ids, 40), kv16);
  // The same tokens in the same splits, but counted as recent ones of 256 each.
  EXPECT_EQ(all_logits(*load(0, 150), ids, 40), kv16);
  EXPECT_EQ(all_logits(*load(5, 9, "kv16"), ids, 40), kv16);
  const std::vector<double> expected(kv16.begin(), kv16.end());
  const double far = relative_distance(kv4, expected);
  EXPECT_GT(far, 0.01);
  const auto half = all_logits(*load(4, 32), ids, 40);
  EXPECT_NE(half, kv4);
  EXPECT_LT(relative_distance(half, expected), far);
}

TEST_F(UnquantisedTokens, CutSequencesGoOnAsIfNothingHadFollowed) {
  for (const auto& [sink, recent] : {std::pair<int64_t, int64_t>{5, 0}, {0, 40}, {50, 40}}) {
    SCOPED_TRACE(fmt::format("{} {}", sink, recent));
    const auto engine = load(sink, recent);
    const int64_t whole = engine->new_sequence(), cut = engine->new_sequence();
    const auto expected = feed(*engine, whole, ids_);
    for (const size_t tokens : {120, 150, 170}) feed(*engine, cut, std::span(ids_).first(tokens));
    // 320 tokens on, what token 120 read unquantised is gone, but for the first ones.
    const int64_t left = engine->reusable(cut, 120);
    EXPECT_EQ(left, recent == 0 ? 120 : sink);
    if (left < 120) {
      EXPECT_THROW(engine->truncate(cut, 120), Error);
    }
    EXPECT_EQ(engine->length(cut), 440);
    EXPECT_EQ(engine->reusable(cut, 400), 400);
    engine->truncate(cut, left);
    EXPECT_EQ(feed(*engine, cut, std::span(ids_).subspan(static_cast<size_t>(left))), expected);

    // A short detour can be taken back.
    const auto before = std::span(ids_).first(450), after = std::span(ids_).subspan(450);
    engine->truncate(cut, engine->reusable(cut, 0));
    feed(*engine, cut, before);
    feed(*engine, cut, {ids_.data(), 50});
    EXPECT_EQ(engine->reusable(cut, 450), 450);
    engine->truncate(cut, 450);
    EXPECT_EQ(feed(*engine, cut, after), expected);
  }
}

TEST_F(UnquantisedTokens, ABatchThatFailsLeavesThemAsTheyWere) {
  const auto engine = Engine::load(
      folder_.path() / "artifact",
      {.threads = 1, .context = 500, .prefill_chunk = 30, .kv_tokens = 1024, .kv_sink = 3, .kv_recent = 40});
  const int64_t alone = engine->new_sequence(), sequence = engine->new_sequence();
  const auto expected = feed(*engine, alone, ids_);
  engine->free_sequence(alone);
  feed(*engine, sequence, {ids_.data(), 100});
  const BatchItem item{sequence, {ids_.data(), 400}, Logits::Last};
  const auto stop = [](int64_t, int64_t, std::span<const float>) { throw Error("stop"); };
  EXPECT_THROW(engine->forward({&item, 1}, stop), Error);
  EXPECT_EQ(engine->length(sequence), 100);
  EXPECT_EQ(engine->pages_in_use(), 2);
  EXPECT_EQ(feed(*engine, sequence, std::span(ids_).subspan(100)), expected);
}

TEST_F(UnquantisedTokens, RefusesMoreThanTheContextHolds) {
  EXPECT_THROW(load(small_config().max_positions + 1, 0), Error);
  EXPECT_THROW(load(0, small_config().max_positions + 1), Error);
  EXPECT_THROW(load(-1, 0), Error);
}

TEST(Engine, RefusesBadBatchesAndStaysAsItWas) {
  const MemoryCheckpoint model(small_config());
  const auto engine = engine_of(model, {.threads = 1, .context = 100, .kv_tokens = 128});
  const auto ids = random_ids(101, 97, 12);
  const int64_t first = engine->new_sequence(), second = engine->new_sequence();
  const auto ignore = [](int64_t, int64_t, std::span<const float>) {};
  const auto refuses = [&](std::vector<BatchItem> batch, std::string_view text) {
    try {
      engine->forward(batch, ignore);
      ADD_FAILURE() << "accepted; wanted: " << text;
    } catch (const Error& error) {
      EXPECT_NE(std::string_view(error.what()).find(text), std::string_view::npos) << error.what();
    }
  };
  const std::span<const int32_t> all(ids);
  const std::vector<int32_t> too_high = {5, 97}, negative = {-1};
  refuses({{first, all, Logits::None}}, "exceed the context of 100");
  refuses({{first, too_high, Logits::None}}, "token 97");
  refuses({{first, negative, Logits::None}}, "token -1");
  refuses({{first, all.first(2), Logits::None}, {first, all.first(2), Logits::None}}, "stands twice");
  refuses({{77, all.first(2), Logits::None}}, "sequence 77 does not exist");
  refuses({{first, all.first(90), Logits::None}, {second, all.first(10), Logits::None}}, "KV cache is full");
  EXPECT_EQ(engine->pages_in_use(), 0);
  EXPECT_EQ(engine->length(first), 0);
  const BatchItem good{first, all.first(100), Logits::None};
  engine->forward({&good, 1}, ignore);
  EXPECT_EQ(engine->length(first), 100);
  EXPECT_EQ(engine->pages_in_use(), 2);
  refuses({{first, all.first(1), Logits::None}}, "exceed the context");
  EXPECT_EQ(engine->length(first), 100);
  engine->free_sequence(first);
  EXPECT_THROW(engine->free_sequence(first), Error);
  EXPECT_EQ(engine->pages_in_use(), 0);
}

TEST(Engine, NamesLayerAndTokenOfWhatIsNotFinite) {
  for (const auto& [tensor, index, value, text] :
       {std::tuple<std::string, size_t, float, std::string>{
            "model.layers.1.mlp.down_proj.weight", 7, INFINITY,
            "layer 1 MLP: the hidden state of the token at position 0"},
        {"model.layers.0.self_attn.o_proj.weight", 0, NAN, "layer 0 attention"},
        {"model.embed_tokens.weight", 5 * 64 + 3, INFINITY, "embedding"},
        {"model.layers.1.self_attn.q_proj.weight", 0, NAN, "layer 1 attention"},
        {"model.layers.1.self_attn.k_proj.weight", 0, NAN, "layer 1: a key or value of KV head 0"}}) {
    MemoryCheckpoint model(small_config());
    model.tensors()[tensor].values[index] = value;
    const auto engine = engine_of(model);
    const std::vector<int32_t> ids = {1, 2, 5, 8};
    const int64_t sequence = engine->new_sequence();
    const BatchItem item{sequence, ids, Logits::Last};
    try {
      engine->forward({&item, 1}, [](int64_t, int64_t, std::span<const float>) {});
      ADD_FAILURE() << "no error for " << tensor;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
    EXPECT_EQ(engine->length(sequence), 0);
    EXPECT_EQ(engine->pages_in_use(), 0);
  }
}

TEST(Engine, RefusesModelsThatDoNotFit) {
  const auto refuses = [](const MemoryCheckpoint& model, std::string_view text,
                          const EngineOptions& options = {}) {
    try {
      engine_of(model, options);
      ADD_FAILURE() << "accepted; wanted: " << text;
    } catch (const Error& error) {
      EXPECT_NE(std::string_view(error.what()).find(text), std::string_view::npos) << error.what();
    }
  };
  const MemoryCheckpoint model(small_config());
  for (const auto& [name, tensor] : model.tensors()) {
    MemoryCheckpoint missing(small_config()), misshapen(small_config());
    missing.tensors().erase(name);
    refuses(missing, name + " is missing");
    misshapen.tensors()[name].shape.front() += 1;
    refuses(misshapen, "tensor " + name + " has shape");
  }
  refuses(model, "context: 513", {.context = 513});
  refuses(model, "context: -1", {.context = -1});
  refuses(model, "threads: 10000", {.threads = 10000});
  refuses(model, "threads: -1", {.threads = -1});
  refuses(model, "prefill chunk", {.prefill_chunk = 0});
  refuses(model, "KV tokens", {.kv_tokens = -5});
}

TEST(Engine, RefusesArtifactPoliciesByName) {
  const MemoryCheckpoint model(small_config());
  const auto refuses = [&](const QuantizationConfig& quantization, std::string_view text) {
    TemporaryFolder folder;
    try {
      write_artifact(model, quantization, folder.path() / "artifact");
      Engine::load(folder.path() / "artifact");
      ADD_FAILURE() << "accepted; wanted: " << text;
    } catch (const Error& error) {
      EXPECT_NE(std::string_view(error.what()).find(text), std::string_view::npos) << error.what();
    }
  };
  QuantizationConfig quantization = test_quantization();
  quantization.defaults.input_transform.kind = "hadamard";
  quantization.defaults.input_transform.order = 32;
  refuses(quantization, "lm_head: a hadamard of order 32 does not fit 64 values");
  quantization = test_quantization();
  quantization.defaults.input_transform.kind = "wavelet";
  refuses(quantization, "wavelet");
  quantization = test_quantization();
  quantization.kv.key_transform.kind = "wavelet";
  refuses(quantization, "wavelet");
  quantization = test_quantization();
  quantization.kv.sink_tokens = 4;
  refuses(quantization, "sink");
}

// An orthogonal transform of q and k leaves their products: without a KV quantiser nothing changes but
// roundings.
TEST(Engine, KeyTransformsLeaveTheScores) {
  const MemoryCheckpoint model(small_config());
  const auto ids = random_ids(80, 97, 13);
  std::vector<float> plain;
  std::vector<double> transformed;
  for (const bool with : {false, true}) {
    QuantizationConfig quantization = test_quantization();
    quantization.defaults.activation = {};
    quantization.linears["lm_head"] = quantization.defaults;
    quantization.kv.bits = 16;
    if (with) {
      quantization.kv.key_transform.kind = "hadamard";
      quantization.kv.key_transform.order = 16;
      quantization.kv.key_transform.seed = 4;
    }
    TemporaryFolder folder;
    write_artifact(model, quantization, folder.path() / "artifact");
    const auto logits = all_logits(*Engine::load(folder.path() / "artifact"), ids, 100);
    if (with)
      transformed.assign(logits.begin(), logits.end());
    else
      plain = logits;
  }
  EXPECT_LT(relative_distance(plain, transformed), 1e-5);
  EXPECT_GT(relative_distance(plain, transformed), 0);
}

TEST(Engine, CountsTheWeightBytesOfAToken) {
  const MemoryCheckpoint model(small_config());
  const ModelConfig& config = model.config();
  const int64_t linears = 2 * (64 * 64 + 2 * 32 * 64 + 64 * 64 + 3 * 64 * 96);
  const int64_t bytes = engine_of(model)->weight_bytes_per_token();
  // FP32; the head's 97 rows fill whole panels of at most 32.
  EXPECT_GE(bytes, 4 * (linears + 97 * 64 + 64));
  EXPECT_LE(bytes, 4 * (linears + 128 * 64 + 64));
  EXPECT_EQ(config.hidden, 64);
}

}  // namespace
}  // namespace quatrain
