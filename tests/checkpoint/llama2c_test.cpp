#include "checkpoint/llama2c.h"

#include <gtest/gtest.h>

#include <numeric>

#include "checkpoint/files.h"
#include "support/shared.h"

namespace quatrain {
namespace {

// hidden 4, intermediate 6, 2 layers, 2 heads, 1 KV head, 5 tokens, 3 positions; values count up from 0.
std::string model(int32_t vocabulary) {
  const std::vector<int32_t> header = {4, 6, 2, 2, 1, vocabulary, 3};
  const size_t values =
      5 * 4 + 2 * (4 + 16 + 8 + 8 + 16 + 4 + 24 + 24 + 24) + 4 + 2 * 3 * 1 + (vocabulary < 0 ? 5 * 4 : 0);
  std::vector<float> data(values);
  std::iota(data.begin(), data.end(), 0.0f);
  return bytes_of(header) + bytes_of(data);
}

float first(const TensorSource& source, std::string_view name) {
  const TensorInfo* info = source.find(name);
  EXPECT_NE(info, nullptr) << name;
  std::vector<float> row(static_cast<size_t>(info->columns()));
  source.read_rows(*info, 0, row);
  return row[0];
}

TEST(Llama2c, PlacesEveryTensor) {
  const std::string bytes = model(5);
  const Llama2cFile file(as_bytes(bytes), "FILE");
  EXPECT_TRUE(file.shape().tied);
  EXPECT_EQ(file.shape().head_dim(), 2);
  EXPECT_EQ(file.tensors().size(), 2 + 2 * 9u);
  EXPECT_EQ(first(file, "model.embed_tokens.weight"), 0);
  EXPECT_EQ(first(file, "model.layers.1.input_layernorm.weight"), 20 + 4);
  EXPECT_EQ(first(file, "model.layers.0.self_attn.q_proj.weight"), 28);
  EXPECT_EQ(first(file, "model.layers.1.self_attn.k_proj.weight"), 28 + 32 + 8);
  EXPECT_EQ(first(file, "model.layers.0.self_attn.v_proj.weight"), 28 + 32 + 16);
  EXPECT_EQ(first(file, "model.layers.0.self_attn.o_proj.weight"), 28 + 32 + 32);
  EXPECT_EQ(first(file, "model.layers.0.post_attention_layernorm.weight"), 28 + 96);
  EXPECT_EQ(first(file, "model.layers.0.mlp.gate_proj.weight"), 28 + 96 + 8);
  EXPECT_EQ(first(file, "model.layers.0.mlp.down_proj.weight"), 28 + 96 + 8 + 48);
  EXPECT_EQ(first(file, "model.layers.1.mlp.up_proj.weight"), 28 + 96 + 8 + 96 + 24);
  EXPECT_EQ(first(file, "model.norm.weight"), 28 + 96 + 8 + 144);
  EXPECT_EQ(file.find("model.layers.0.mlp.down_proj.weight")->shape, (std::vector<int64_t>{4, 6}));
  EXPECT_EQ(file.find("lm_head.weight"), nullptr);
}

TEST(Llama2c, NegativeVocabularyMeansAnOwnHead) {
  const std::string bytes = model(-5);
  const Llama2cFile file(as_bytes(bytes), "FILE");
  EXPECT_FALSE(file.shape().tied);
  EXPECT_EQ(file.shape().vocabulary, 5);
  EXPECT_EQ(first(file, "lm_head.weight"), 28 + 96 + 8 + 144 + 4 + 6);
}

TEST(Llama2c, RefusesFilesThatDoNotFitTheirHeader) {
  const std::string good = model(5);
  const auto refused = [](const std::string& file, std::initializer_list<std::string_view> parts) {
    const std::vector<std::byte> exact(as_bytes(file).begin(), as_bytes(file).end());
    expect_error([&] { Llama2cFile(exact, "FILE"); }, parts);
  };
  for (size_t size = 0; size < good.size(); ++size) refused(good.substr(0, size), {"FILE"});
  refused(good + "abcd", {"4 bytes are left"});
  refused(model(-5).substr(0, good.size()), {"lm_head.weight"});
  const auto with = [&](int index, int32_t value) {
    std::string file = good;
    std::memcpy(file.data() + 4 * index, &value, 4);
    return file;
  };
  for (int index = 0; index < 7; ++index) {
    refused(with(index, 0), {"header field"});
    refused(with(index, INT32_MIN), {"header field"});
    refused(with(index, INT32_MAX), {"header field"});
  }
  refused(with(3, 3), {"do not divide"});
  refused(with(3, 4), {"do not divide"});  // an odd head
  refused(with(4, 2), {"ends before"});
  refused(with(2, (1 << 24) - 1), {"ends before"});
  refused("24ka" + bytes_of(int32_t{2}) + std::string(300, '\0'), {"version 2"});
}

TEST(Llama2c, ReadsTheTrainedModels) {
  const auto shared = shared_dir();
  if (!shared) GTEST_SKIP() << "large fixtures are not here";
  const Llama2cFile stories(*shared / "data/models/stories260K/stories260K.bin");
  EXPECT_EQ(stories.shape().vocabulary, 512);
  EXPECT_TRUE(stories.shape().tied);
  const Llama2cFile baby(*shared / "data/models/babyllama-105/model5000.bin");
  EXPECT_EQ(baby.shape().vocabulary, 105);
  EXPECT_EQ(baby.find("model.layers.4.self_attn.k_proj.weight")->shape, (std::vector<int64_t>{64, 128}));
  for (const Llama2cFile* file : {&stories, &baby}) {
    for (const TensorInfo& info : file->tensors()) {
      if (info.shape.size() != 1) continue;
      EXPECT_GT(first(*file, info.name), 0.05f)
          << info.name;  // a norm's weight: a wrong place would show others
    }
  }
}

}  // namespace
}  // namespace quatrain
