// The tiny models of the shared fixtures open with every tensor in its canonical shape, and the configs of
// the shared data pass a dry run or are refused by name.
#include <gtest/gtest.h>

#include <cmath>

#include "base/sha256.h"
#include "model/checkpoint.h"
#include "support/shared.h"

namespace quatrain {
namespace {

class TinyModel : public testing::TestWithParam<const char*> {
 protected:
  fs::path directory() const { return *shared_dir() / "fixtures" / "tiny-models" / GetParam(); }
};

TEST_P(TinyModel, OpensWithCanonicalShapes) {
  if (!shared_dir()) GTEST_SKIP() << "no shared fixtures";
  const auto checkpoint = open_checkpoint(directory());
  const ModelConfig& config = checkpoint->config();
  int64_t elements = 0;
  const auto visit = [&](const std::string& name, const std::vector<int64_t>& shape) {
    ASSERT_TRUE(checkpoint->has(name)) << name;
    EXPECT_EQ(checkpoint->shape(name), shape) << name;
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    EXPECT_EQ(checkpoint->read(name).size(), static_cast<size_t>(count)) << name;
    elements += count;
  };
  for (const PlainShape& tensor : plain_tensors_of_model(config)) visit(tensor.name, tensor.shape);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    for (const PlainShape& tensor : plain_tensors_of_layer(config, layer)) visit(tensor.name, tensor.shape);
    for (const LinearShape& linear : linears_of_layer(config, layer)) {
      visit(linear.name + ".weight", {linear.out, linear.in});
      if (linear.bias) visit(linear.name + ".bias", {linear.out});
    }
  }
  EXPECT_EQ(elements, parameter_count(config));
  // Every byte of the file is accounted for.
  const auto source = open_safetensors(directory());
  int64_t in_file = 0;
  for (const TensorInfo& tensor : source->tensors()) in_file += tensor.elements();
  EXPECT_EQ(in_file, elements);
}

TEST_P(TinyModel, ConfigSurvivesItsOwnJson) {
  if (!shared_dir()) GTEST_SKIP() << "no shared fixtures";
  const ModelConfig config = ModelConfig::from_json(read_json(directory() / "config.json"), "config.json");
  EXPECT_EQ(ModelConfig::from_json(config.to_json(), "again"), config) << config.to_json().dump(1);
}

TEST_P(TinyModel, FingerprintIsStable) {
  if (!shared_dir()) GTEST_SKIP() << "no shared fixtures";
  const std::string fingerprint = open_checkpoint(directory())->fingerprint();
  EXPECT_EQ(fingerprint.size(), 64u);
  EXPECT_EQ(fingerprint, open_checkpoint(directory())->fingerprint());
}

INSTANTIATE_TEST_SUITE_P(All, TinyModel,
                         testing::Values("gemma3-text", "llama-gqa", "llama-tied-576", "llama31-rope",
                                         "mixtral", "qwen2-bias", "qwen3-moe", "qwen3-qknorm"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name)
                             if (c == '-') c = '_';
                           return name;
                         });

}  // namespace
}  // namespace quatrain
