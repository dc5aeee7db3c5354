// Converting there and back gives the same values, config and token ids.
#include "model/convert.h"

#include <gtest/gtest.h>

#include <cmath>

#include "model/checkpoint.h"
#include "support/shared.h"
#include "test_model.h"

namespace quatrain {
namespace {

void expect_same_model(const Checkpoint& a, const Checkpoint& b, float shift_of_norms = 0) {
  const ModelConfig& config = a.config();
  const auto compare = [&](const std::string& name, bool norm) {
    std::vector<float> values = a.read(name);
    if (norm)
      for (float& value : values) value += shift_of_norms;
    EXPECT_EQ(values, b.read(name)) << name;
    EXPECT_EQ(a.shape(name), b.shape(name)) << name;
  };
  for (const PlainShape& tensor : plain_tensors_of_model(config))
    compare(tensor.name, tensor.shape.size() == 1);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    for (const PlainShape& tensor : plain_tensors_of_layer(config, layer))
      compare(tensor.name, tensor.shape.size() == 1);
    for (const LinearShape& linear : linears_of_layer(config, layer)) {
      compare(linear.name + ".weight", false);
      if (linear.bias) compare(linear.name + ".bias", false);
    }
  }
}

class Convert : public testing::TestWithParam<const char*> {};

TEST_P(Convert, TinyModelToGgufAndBack) {
  if (!shared_dir()) GTEST_SKIP() << "no shared fixtures";
  const fs::path source = *shared_dir() / "fixtures" / "tiny-models" / GetParam();
  const fs::path folder = fresh_folder(std::string("convert-") + GetParam());
  convert_model(source, folder / "model.gguf", {.format = "gguf", .dtype = ""});
  const auto hub = open_checkpoint(source), gguf = open_checkpoint(folder / "model.gguf");
  expect_same_model(*hub, *gguf, hub->config().norm_offset - gguf->config().norm_offset);
  ModelConfig expected = hub->config();
  expected.norm_offset = 0;
  EXPECT_EQ(gguf->config(), expected) << gguf->config().to_json() << "\n" << expected.to_json();

  convert_model(folder / "model.gguf", folder / "back",
                {.format = "safetensors", .dtype = "", .shard_bytes = 100'000});
  const auto back = open_checkpoint(folder / "back");
  // 1 + w is not always exact in FP32: its gain may move by half of 2^-23.
  if (hub->config().norm_offset == 0) expect_same_model(*hub, *back);
  EXPECT_EQ(back->config(), hub->config());
}

INSTANTIATE_TEST_SUITE_P(All, Convert,
                         testing::Values("gemma3-text", "llama-gqa", "llama-tied-576", "llama31-rope",
                                         "mixtral", "qwen2-bias", "qwen3-moe", "qwen3-qknorm"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name)
                             if (c == '-') c = '_';
                           return name;
                         });

Json phi_config() {
  return {{"model_type", "phi3"},     {"vocab_size", 64},
          {"hidden_size", 32},        {"intermediate_size", 48},
          {"num_hidden_layers", 2},   {"num_attention_heads", 4},
          {"num_key_value_heads", 2}, {"max_position_embeddings", 64},
          {"sliding_window", 16},     {"torch_dtype", "float32"}};
}

TEST(ConvertModel, FusedProjectionsGoBackToTheirFormat) {
  const TestTensors tensors = random_tensors(ModelConfig::from_json(phi_config(), "test"));
  const fs::path folder = fresh_folder("convert-phi3");
  fs::create_directories(folder / "source");
  write_hub(folder / "source", phi_config(), tensors);
  convert_model(folder / "source", folder / "model.gguf", {.format = "gguf", .dtype = "f32"});
  convert_model(folder / "model.gguf", folder / "back",
                {.format = "safetensors", .dtype = "bf16"});  // exact: see random_tensor
  const auto source = open_safetensors(folder / "back");
  EXPECT_NE(source->find("model.layers.1.self_attn.qkv_proj.weight"), nullptr);
  EXPECT_EQ(source->find("model.layers.1.mlp.gate_up_proj.weight")->type, "BF16");
  expect_same_model(*open_checkpoint(folder / "source"), *open_checkpoint(folder / "back"));
  ModelConfig expected = open_checkpoint(folder / "source")->config();
  expected.dtype = "bfloat16";
  EXPECT_EQ(open_checkpoint(folder / "back")->config(), expected);
}

TEST(ConvertModel, TypesRoundToNearest) {
  Json json = phi_config();
  json["model_type"] = "llama";
  TestTensors tensors = random_tensors(ModelConfig::from_json(json, "test"));
  tensors["model.layers.0.mlp.up_proj.weight"].values[7] = 1.0f / 3;
  const fs::path folder = fresh_folder("convert-types");
  fs::create_directories(folder / "source");
  write_hub(folder / "source", json, tensors);
  for (const auto& [dtype, error] :
       {std::pair{"f32", 0.0}, {"f16", 0x1p-13}, {"bf16", 0x1p-10}, {"q8_0", 0.5 / 127}}) {
    const bool gguf_only = dtype[0] == 'q';
    for (const std::string format : {"gguf", "safetensors"}) {
      if (gguf_only && format == "safetensors") continue;
      const fs::path target = folder / (std::string(dtype) + (format == "gguf" ? ".gguf" : ""));
      convert_model(folder / "source", target, {.format = format, .dtype = dtype});
      const auto read = open_checkpoint(target)->read("model.layers.0.mlp.up_proj.weight");
      const auto& source = tensors["model.layers.0.mlp.up_proj.weight"].values;
      for (size_t i = 0; i < read.size(); ++i) EXPECT_NEAR(read[i], source[i], error) << dtype;
    }
  }
  tensors["model.layers.1.mlp.up_proj.weight"].values[3] = 1e6f;
  fs::create_directories(folder / "large");
  write_hub(folder / "large", json, tensors);
  for (const std::string format : {"gguf", "safetensors"}) {
    const fs::path never = folder / ("never." + format);
    try {
      convert_model(folder / "large", never, {.format = format, .dtype = "f16"});
      ADD_FAILURE() << "1e6 fits no FP16";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(format == "gguf" ? "blk.1.ffn_up" : "layers.1.mlp.up_proj"),
                std::string::npos)
          << error.what();
    }
    EXPECT_FALSE(fs::exists(never));
  }
}

TEST(ConvertModel, RefusesWrongUse) {
  const fs::path folder = fresh_folder("convert-usage");
  EXPECT_THROW(convert_model("x", folder / "y", {.format = "gptq", .dtype = ""}), UsageError);
  EXPECT_THROW(convert_model("x", folder / "y.gguf", {.format = "gguf", .dtype = "f8"}), UsageError);
  EXPECT_THROW(convert_model(folder / "none", folder / "y.gguf", {.format = "gguf", .dtype = ""}), Error);
  EXPECT_THROW(convert_model("x", folder / "y.bin", {.format = "gguf", .dtype = ""}), UsageError);
  write_file(folder / "taken.gguf", "x");
  EXPECT_THROW(convert_model(folder, folder / "taken.gguf", {.format = "gguf", .dtype = ""}), Error);
}

TEST(ConvertModel, TokenizerGoesAlong) {
  if (!shared_dir()) GTEST_SKIP() << "no shared data";
  const fs::path source = *shared_dir() / "data" / "models" / "stories260K" / "stories260K.bin";
  const fs::path folder = fresh_folder("convert-tokenizer");
  convert_model(source, folder / "hub", {.format = "safetensors", .dtype = ""});
  convert_model(folder / "hub", folder / "model.gguf", {.format = "gguf", .dtype = ""});
  expect_same_model(*open_checkpoint(source), *open_checkpoint(folder / "model.gguf"));
  const auto first = load_model_tokenizer(source), hub = load_model_tokenizer(folder / "hub"),
             gguf = load_model_tokenizer(folder / "model.gguf");
  for (const std::string text :
       {"Once upon a time, there was a little girl named Lily.", "naïve café 12", "  two  spaces\n"}) {
    EXPECT_EQ(hub->encode_sequence(text), first->encode_sequence(text)) << text;
    EXPECT_EQ(gguf->encode_sequence(text), first->encode_sequence(text)) << text;
  }
}

}  // namespace
}  // namespace quatrain
