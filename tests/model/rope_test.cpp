// Rotary frequencies against double-precision values from the published formulas (golden_rope.py).
#include <gtest/gtest.h>

#include <cmath>

#include "model/config.h"

namespace quatrain {
namespace {

Json llama_config() {
  return {{"model_type", "llama"},
          {"vocab_size", 100},
          {"hidden_size", 64},
          {"intermediate_size", 128},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"max_position_embeddings", 131072}};
}

// FP32: the exponent is rounded to 2^-24 relative, which the power magnifies by ln(theta) <= 14; the power,
// the reciprocal and up to six more operations round once each. The ramp of YaRN and llama3 subtracts from 1,
// so its error is relative to the larger of the two frequencies blended, at most `factor` times the result.
float tolerance(double factor) {
  return static_cast<float>((14 + 8 * std::max(1.0, factor)) * 0x1p-24);
}

TEST(Rope, AgreesWithPublishedFormulas) {
  const Json cases = read_json(fs::path(QUATRAIN_SOURCE_DIR) / "tests/model/golden_rope.json");
  ASSERT_EQ(cases.size(), 10u);
  for (const Json& golden : cases) {
    SCOPED_TRACE(golden["name"].get<std::string>());
    Json parameters = golden["parameters"];
    const auto head_dim = parameters["d"].get<int64_t>();
    for (const bool new_style : {false, true}) {
      Json json = llama_config();
      json["head_dim"] = head_dim;
      Json rope = parameters;
      rope.erase("d");
      rope.erase("theta");
      if (new_style) {
        rope["rope_theta"] = parameters["theta"];
        json["rope_parameters"] = rope;
      } else {
        json["rope_theta"] = parameters["theta"];
        if (rope.contains("partial_rotary_factor"))
          json["partial_rotary_factor"] = rope["partial_rotary_factor"];
        if (rope.contains("rope_type")) json["rope_scaling"] = rope;
      }
      const ModelConfig config = ModelConfig::from_json(json, "test");
      const auto& expected = golden["frequencies"];
      const std::vector<float> frequencies = config.rope.inverse_frequencies(head_dim);
      ASSERT_EQ(frequencies.size(), expected.size());
      for (size_t i = 0; i < frequencies.size(); ++i) {
        const auto value = expected[i].get<float>();
        EXPECT_NEAR(frequencies[i], value, value * tolerance(config.rope.factor)) << i;
      }
      EXPECT_FLOAT_EQ(config.rope.attention_scale(), golden["attention_scale"].get<float>());
      EXPECT_EQ(config.local_rope, config.rope);
      EXPECT_EQ(ModelConfig::from_json(config.to_json(), "again"), config);
    }
  }
}

TEST(Rope, YarnTakesMissingFactorAndOriginalLengthFromTheContext) {
  Json json = llama_config();
  json["rope_scaling"] = {{"type", "yarn"}, {"original_max_position_embeddings", 32768}};
  EXPECT_EQ(ModelConfig::from_json(json, "test").rope.factor, 4);
  json["rope_scaling"] = {{"type", "yarn"}, {"factor", 4}};
  EXPECT_EQ(ModelConfig::from_json(json, "test").rope.original_positions, 131072);
}

TEST(Rope, ListsOfEqualFactorsAreDivisors) {
  Json json = llama_config();  // 16 columns a head: 8 frequencies
  const std::vector<double> factors = {1, 1, 1.5, 2, 4, 8, 8, 8};
  json["rope_scaling"] = {{"rope_type", "longrope"},
                          {"short_factor", factors},
                          {"long_factor", factors},
                          {"attention_factor", 1.0}};
  const ModelConfig config = ModelConfig::from_json(json, "test");
  const std::vector<float> plain = RopeConfig{}.inverse_frequencies(16);
  const std::vector<float> divided = config.rope.inverse_frequencies(16);
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_EQ(divided[i], plain[i] / static_cast<float>(factors[i]));
  EXPECT_EQ(ModelConfig::from_json(config.to_json(), "again"), config);
}

}  // namespace
}  // namespace quatrain
