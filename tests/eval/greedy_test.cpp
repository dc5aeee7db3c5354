// Greedy tokens of the engine against the fake-quantised reference. Both round at the same places, but their
// FP32 sums run in different orders, and a value at a rounding tie then takes the neighbouring code. How far
// that alone moves logits is measured on the reference itself: the same model with its channels in another
// order computes the same in exact arithmetic. Where the reference's margin between its two best tokens is
// wider than the largest such difference at that token, the engine must choose the same token.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "checkpoint/safetensors_writer.h"
#include "eval/scorer.h"
#include "model/checkpoint.h"
#include "ops/cpu/isa.h"
#include "support/shared.h"
#include "text/corpus.h"
#ifdef QUATRAIN_HAVE_TORCH
#include "quant/pipeline.h"

namespace quatrain {
namespace {

constexpr int64_t kTokens = 500;  // within the model's context of 512
constexpr int kOrders = 16;

std::vector<int64_t> random_order(int64_t size, uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<int64_t> order(static_cast<size_t>(size));
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
  for (size_t i = order.size() - 1; i > 0; --i) std::swap(order[i], order[random.below(i + 1)]);
  return order;
}

// Writes `source` with the channels of its residual stream in another order: columns of what reads the
// stream, rows of what writes into it. Quantisers whose groups span all channels see the same values.
void write_reordered(const Checkpoint& source, uint64_t seed, const fs::path& folder) {
  const ModelConfig& config = source.config();
  const std::vector<int64_t> order = random_order(config.hidden, seed);
  fs::create_directories(folder);
  write_file(folder / "config.json", config.to_json().dump());
  SafetensorsWriter writer(folder, uint64_t{1} << 30);
  const auto add = [&](const std::string& name, bool rows) {
    const std::vector<int64_t> shape = source.shape(name);
    const std::vector<float> values = source.read(name);
    const int64_t columns =
        shape.size() == 1 || rows ? static_cast<int64_t>(values.size()) / shape[0] : shape[1];
    std::vector<float> moved(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      const int64_t row = static_cast<int64_t>(i) / columns, column = static_cast<int64_t>(i) % columns;
      const int64_t from = rows || shape.size() == 1 ? order[static_cast<size_t>(row)] * columns + column
                                                     : row * columns + order[static_cast<size_t>(column)];
      moved[i] = values[static_cast<size_t>(from)];
    }
    writer.add(name, "F32", shape, std::as_bytes(std::span(moved)));
  };
  for (const PlainShape& plain : plain_tensors_of_model(config)) add(plain.name, false);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    for (const PlainShape& plain : plain_tensors_of_layer(config, layer)) add(plain.name, false);
    for (const LinearShape& linear : linears_of_layer(config, layer))
      add(linear.name + ".weight", linear.name.ends_with("o_proj") || linear.name.ends_with("down_proj"));
  }
  writer.finish();
}

std::vector<std::vector<float>> all_logits(const fs::path& artifact, const char* engine,
                                           std::span<const int32_t> ids) {
  ScorerOptions options;
  options.engine = engine;
  std::vector<std::vector<float>> rows;
  make_scorer(artifact, options)->score(ids, 0, [&](int64_t, std::span<const float> logits) {
    rows.emplace_back(logits.begin(), logits.end());
  });
  return rows;
}

// The model's own artifact in `folder`, the text, and what the reference computes for it.
struct Text {
  fs::path model, folder;
  Recipe recipe;
  std::vector<int32_t> ids;
  std::vector<std::vector<float>> reference;

  Text(const fs::path& shared, const char* name)
      : model(shared / "data/models/stories260K/stories260K.bin"),
        folder(fs::path(testing::TempDir()) / (std::string("greedy-") + name)),
        recipe(load_recipe(name)) {
    fs::remove_all(folder);
    fs::create_directories(folder);
    quantize(model, recipe, folder / "artifact", {});
    const Corpus corpus = load_corpus((shared / "data/text/tinystories/tinystories_val.txt.gz").string());
    ids = load_model_tokenizer(model)->encode_sequence(corpus.text.substr(0, 8 * kTokens), false);
    ids.resize(kTokens);
    reference = all_logits(folder / "artifact", "reference", ids);
  }
  ~Text() { fs::remove_all(folder); }

  std::vector<std::vector<float>> in_order(uint64_t seed) const {
    const fs::path reordered = folder / std::to_string(seed);
    write_reordered(*open_checkpoint(model), seed, reordered);
    quantize(reordered, recipe, folder / "reordered", {});
    auto logits = all_logits(folder / "reordered", "reference", ids);
    fs::remove_all(folder / "reordered");
    return logits;
  }

  std::vector<std::vector<float>> native(ops::Isa isa) const {
    const ops::Isa before = ops::active_isa();
    ops::set_isa(isa);
    auto logits = all_logits(folder / "artifact", "native", ids);
    ops::set_isa(before);
    return logits;
  }

  // Of each token, the largest difference of a logit from the reference's.
  std::vector<float> differences(const std::vector<std::vector<float>>& other) const {
    EXPECT_EQ(other.size(), reference.size());
    std::vector<float> largest(reference.size());
    for (size_t t = 0; t < reference.size(); ++t)
      for (size_t v = 0; v < reference[t].size(); ++v)
        largest[t] = std::max(largest[t], std::fabs(other[t][v] - reference[t][v]));
    return largest;
  }
};

struct Case {
  const char* recipe;
  ops::Isa most;  // the best instruction set that is tried
  double share;   // of the tokens, that has to be compared
};

class Greedy : public testing::TestWithParam<Case> {};

TEST_P(Greedy, EqualAboveTheMargin) {
  const auto shared = shared_dir();
  if (!shared) GTEST_SKIP() << "no shared fixtures";
  const Text text(*shared, GetParam().recipe);
  const auto& reference = text.reference;
  std::vector<float> spread(reference.size());  // of each token, the largest difference between orders
  for (int i = 1; i <= kOrders; ++i) {
    const auto differences = text.differences(text.in_order(static_cast<uint64_t>(i)));
    for (size_t t = 0; t < spread.size(); ++t) spread[t] = std::max(spread[t], differences[t]);
  }
  EXPECT_GT(*std::max_element(spread.begin(), spread.end()), 0);  // the orders do differ

  const auto native = text.native(std::min(ops::active_isa(), GetParam().most));
  ASSERT_EQ(native.size(), reference.size());
  int compared = 0;
  for (size_t t = 0; t < reference.size(); ++t) {
    const std::vector<float>& row = reference[t];
    const auto best = std::max_element(row.begin(), row.end()) - row.begin();
    float second = -INFINITY;
    for (size_t v = 0; v < row.size(); ++v)
      if (static_cast<std::ptrdiff_t>(v) != best) second = std::max(second, row[v]);
    if (row[static_cast<size_t>(best)] - second <= spread[t]) continue;
    ++compared;
    EXPECT_EQ(std::max_element(native[t].begin(), native[t].end()) - native[t].begin(), best)
        << "token " << t;
  }
  const double share = compared / static_cast<double>(reference.size());
  RecordProperty("compared_share", std::to_string(share));
  EXPECT_GE(share, GetParam().share);
}

// Of w8a8's tokens 90 of 100 have such a margin, as the design asks. A 4-bit code is a step 17 times as wide,
// and orders of w4a8kv4-rtn differ by more than four of ten margins.
INSTANTIATE_TEST_SUITE_P(Recipes, Greedy,
                         testing::Values(Case{"w8a8", ops::Isa::Avx512Vnni, 0.9},
                                         Case{"w4a8kv4-rtn", ops::Isa::Avx512Vnni, 0.5}),
                         [](const auto& info) {
                           std::string name = info.param.recipe;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// With inputs of 4 bits by row few codes lie at ties, but one of them that falls the other way moves
// later tokens by several logits, in another order of the reference's sums as well. Up to the first such token
// engine and reference differ by no more than rounding: what their orders differ by, within a factor of 2.
TEST(GreedyByRow, DiffersAsOrdersDoUpToTheFirstTie) {
  const auto shared = shared_dir();
  if (!shared) GTEST_SKIP() << "no shared fixtures";
  const Text text(*shared, "rtn");
  const auto median_before_a_tie = [&](const std::vector<std::vector<float>>& other) {
    std::vector<float> differences = text.differences(other);
    const auto tie = std::find_if(differences.begin(), differences.end(), [](float x) { return x > 1e-3f; });
    differences.erase(tie, differences.end());
    EXPECT_FALSE(differences.empty());
    if (differences.empty()) return INFINITY;
    std::nth_element(differences.begin(), differences.begin() + std::ssize(differences) / 2,
                     differences.end());
    return differences[differences.size() / 2];
  };
  float orders = 0;
  for (uint64_t seed = 1; seed <= 4; ++seed)
    orders = std::max(orders, median_before_a_tie(text.in_order(seed)));
  for (const ops::Isa isa : {ops::Isa::Generic, ops::Isa::Avx2, ops::Isa::Avx512Vnni}) {
    if (isa > ops::active_isa()) continue;
    const float engine = median_before_a_tie(text.native(isa));
    RecordProperty(fmt::format("engine_over_orders_{}", static_cast<int>(isa)),
                   fmt::format("{:.2f}", engine / orders));
    EXPECT_LE(engine, 2 * orders) << static_cast<int>(isa);
  }
}

}  // namespace
}  // namespace quatrain
#endif
