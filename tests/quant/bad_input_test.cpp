// Calibration that is thin, repetitive or not finite.
#include <gtest/gtest.h>

#include <cstring>

#include "base/error.h"
#include "base/json.h"
#include "quant/journal.h"
#include "quant/pipeline.h"
#include "support/shared.h"

namespace quatrain {
namespace {

class BadInput : public testing::Test {
 protected:
  void SetUp() override {
    const auto shared = shared_dir();
    if (!shared) GTEST_SKIP();
    directory_ =
        fs::path(testing::TempDir()) /
        (std::string("quatrain_bad_input_") + testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(directory_);
    fs::create_directories(directory_);
    fs::copy(*shared / "fixtures" / "tiny-models" / "llama-gqa", directory_ / "model",
             fs::copy_options::recursive);
  }
  void TearDown() override { fs::remove_all(directory_); }

  Json run(const std::string& recipe, const std::vector<std::vector<int32_t>>& samples,
           const std::vector<std::string>& overrides = {}) const {
    QuantizeOptions options;
    options.threads = 2;
    options.samples = samples;
    fs::remove_all(directory_ / "out");
    return quantize(directory_ / "model", load_recipe(recipe, overrides), directory_ / "out", options);
  }

  // Overwrites the first value of an FP32 tensor.
  void poke(const std::string& tensor, float value) const {
    const fs::path path = directory_ / "model" / "model.safetensors";
    std::string bytes = read_file(path);
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof length);
    const Json header = parse_json(std::string_view(bytes).substr(8, length), path.string());
    ASSERT_EQ(header.at(tensor).at("dtype"), "F32");
    const auto offset = header.at(tensor).at("data_offsets").at(0).get<uint64_t>();
    std::memcpy(bytes.data() + 8 + length + offset, &value, sizeof value);
    write_file(path, bytes);
  }

  fs::path directory_;
};

// A Hessian of rank 1, and one of fewer tokens than columns: damping makes both positive definite.
TEST_F(BadInput, RepetitiveAndFewTokensStillQuantise) {
  for (const char* recipe : {"quatrain", "quarot", "gptq"})
    for (const auto& samples :
         {std::vector<std::vector<int32_t>>(2, std::vector<int32_t>(32, 7)), {{1, 2, 3, 4}}}) {
      const Json report = run(recipe, samples);
      EXPECT_GE(report["linears"].size(), 21u) << recipe;
      for (const Json& linear : report["linears"]) {
        const auto error = linear.at("relative_error").get<double>();
        EXPECT_TRUE(error >= 0 && error < 1e3) << linear.dump();
      }
    }
}

// Smoothing that moves all of the range into the weights, of channels that few tokens reach.
TEST_F(BadInput, StrongSmoothingThenGptqStaysFinite) {
  for (const char* alpha : {"transform.alpha=0.95", "transform.alpha=1"}) {
    const Json report = run("smoothquant", {std::vector<int32_t>(24, 7), {1, 2, 3}},
                            {"weights.method=gptq", "weights.group=16", alpha});
    for (const Json& linear : report["linears"]) {
      const auto error = linear.at("relative_error").get<double>();
      EXPECT_TRUE(error >= 0 && error < 1e3) << linear.dump();
    }
  }
}

// A gain so large that activations overflow: the error says where, and leaves nothing behind.
TEST_F(BadInput, ActivationsThatAreNotFiniteAreNamed) {
  poke("model.layers.1.post_attention_layernorm.weight", 3e38f);
  for (const char* recipe : {"quatrain", "quarot", "gptq"}) {
    try {
      run(recipe, {std::vector<int32_t>(16, 5), std::vector<int32_t>(16, 6)});
      ADD_FAILURE() << recipe;
    } catch (const Error& error) {
      const std::string text = error.what();
      for (const char* part : {"layers.1.", "token", "channel"})
        EXPECT_NE(text.find(part), std::string::npos) << recipe << ": " << text;
    }
    EXPECT_FALSE(fs::exists(directory_ / "out"));
    EXPECT_FALSE(fs::exists(directory_ / "out.partial"));
    fs::remove_all(
        Journal::path_of(directory_ / "out"));  // layer 0 was finished where no rotation came first
  }
}

// Overflow behind the last linear, where no further input is looked at.
TEST_F(BadInput, AStreamThatEndsNotFiniteIsNamed) {
  poke("model.layers.2.mlp.gate_proj.weight", 1e3f);
  poke("model.layers.2.mlp.up_proj.weight", 1e3f);
  poke("model.layers.2.mlp.down_proj.weight", 3e38f);
  try {
    run("gptq", {std::vector<int32_t>(16, 5), std::vector<int32_t>(16, 6), {1, 2, 3, 4}});
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("behind model.layers.2 are not finite"), std::string::npos)
        << error.what();
  }
  EXPECT_FALSE(fs::exists(directory_ / "out"));
}

}  // namespace
}  // namespace quatrain
