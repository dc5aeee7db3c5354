// Checkpoints of shapes met in the wild: sharded, biased, fused, stacked, multimodal wrappers; and broken
// ones.
#include "model/checkpoint.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "test_model.h"

namespace quatrain {
namespace {

Json small_config(const std::string& model_type) {
  Json json = {{"model_type", model_type}, {"vocab_size", 40},         {"hidden_size", 24},
               {"intermediate_size", 36},  {"num_hidden_layers", 3},   {"num_attention_heads", 3},
               {"head_dim", 10},           {"num_key_value_heads", 1}, {"max_position_embeddings", 64},
               {"torch_dtype", "float32"}};
  if (model_type == "mixtral" || model_type == "qwen3_moe") {
    json["num_local_experts"] = 3;
    json["num_experts_per_tok"] = 2;
    json["moe_intermediate_size"] = 12;
  }
  return json;
}

void expect_same(const Checkpoint& checkpoint, const TestTensors& tensors) {
  for (const auto& [name, tensor] : tensors) {
    ASSERT_TRUE(checkpoint.has(name)) << name;
    EXPECT_EQ(checkpoint.shape(name), tensor.shape) << name;
    EXPECT_EQ(checkpoint.read(name), tensor.values) << name;
    if (tensor.shape.size() == 2 && tensor.shape[0] > 3) {  // a middle piece
      const int64_t columns = tensor.shape[1];
      const std::vector<float> expected(tensor.values.begin() + columns, tensor.values.begin() + 3 * columns);
      EXPECT_EQ(checkpoint.read_rows(name, 1, 3), expected) << name;
    }
  }
}

std::string open_error(const fs::path& path) {
  try {
    open_checkpoint(path);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Checkpoint, ShardedWithBiases) {
  Json json = small_config("llama");
  json["attention_bias"] = json["mlp_bias"] = true;
  const ModelConfig config = ModelConfig::from_json(json, "test");
  const TestTensors tensors = random_tensors(config);
  const fs::path folder = fresh_folder("sharded");
  write_hub(folder, json, tensors, 4000);
  EXPECT_TRUE(fs::exists(folder / "model-00002-of-00009.safetensors") ||
              fs::exists(folder / "model.safetensors.index.json"));
  expect_same(*open_checkpoint(folder), tensors);

  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with("model-00002")) {
      fs::remove(entry.path());
      break;
    }
  }
  EXPECT_NE(open_error(folder).find("model-00002"), std::string::npos) << open_error(folder);
}

TEST(Checkpoint, FusedProjectionsOfPhi3) {
  Json json = small_config("phi3");
  const ModelConfig config = ModelConfig::from_json(json, "test");
  const TestTensors tensors = random_tensors(config);
  TestTensors stored = tensors;
  for (int layer = 0; layer < 3; ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.", layer), attention = prefix + "self_attn.",
                      mlp = prefix + "mlp.";
    stored[attention + "qkv_proj.weight"] = stack(
        tensors, {attention + "q_proj.weight", attention + "k_proj.weight", attention + "v_proj.weight"},
        {50, 24});
    stored[mlp + "gate_up_proj.weight"] =
        stack(tensors, {mlp + "gate_proj.weight", mlp + "up_proj.weight"}, {72, 24});
    for (const char* part : {"q_proj", "k_proj", "v_proj"}) stored.erase(attention + part + ".weight");
    for (const char* part : {"gate_proj", "up_proj"}) stored.erase(mlp + part + ".weight");
  }
  const fs::path folder = fresh_folder("phi3");
  write_hub(folder, json, stored);
  expect_same(*open_checkpoint(folder), tensors);

  stored["model.layers.1.self_attn.qkv_proj.weight"].shape = {25, 48};
  write_hub(fresh_folder("phi3-bad"), json, stored);
  const std::string error = open_error(fs::path(QUATRAIN_BINARY_DIR) / "model-tests" / "phi3-bad");
  EXPECT_NE(error.find("layers.1.self_attn.qkv_proj.weight is [25, 48]"), std::string::npos) << error;
}

TEST(Checkpoint, ExpertsUnderEveryName) {
  for (const bool stacked : {false, true}) {
    Json json = small_config("mixtral");
    const ModelConfig config = ModelConfig::from_json(json, "test");
    const TestTensors tensors = random_tensors(config);
    TestTensors stored;
    for (const auto& [name, tensor] : tensors) {
      std::string renamed = name;
      if (name.find(".mlp.") != name.npos) {
        if (stacked && name.find(".experts.") != name.npos) continue;
        renamed.replace(name.find(".mlp."), 5, ".block_sparse_moe.");
        for (const auto& [from, to] : {std::pair{"gate_proj", "w1"}, {"down_proj", "w2"}, {"up_proj", "w3"}})
          if (const size_t at = renamed.find(from); at != renamed.npos)
            renamed.replace(at, std::string_view(from).size(), to);
      }
      stored[renamed] = tensor;
    }
    for (int layer = 0; stacked && layer < 3; ++layer) {
      const std::string experts = fmt::format("model.layers.{}.mlp.experts.", layer);
      std::vector<std::string> gate_up, down;
      for (int expert = 0; expert < 3; ++expert) {
        gate_up.push_back(fmt::format("{}{}.gate_proj.weight", experts, expert));
        gate_up.push_back(fmt::format("{}{}.up_proj.weight", experts, expert));
        down.push_back(fmt::format("{}{}.down_proj.weight", experts, expert));
      }
      stored[experts + "gate_up_proj"] = stack(tensors, gate_up, {3, 72, 24});
      stored[experts + "down_proj"] = stack(tensors, down, {3, 24, 36});
    }
    const fs::path folder = fresh_folder(stacked ? "mixtral-stacked" : "mixtral");
    write_hub(folder, json, stored);
    expect_same(*open_checkpoint(folder), tensors);
  }
}

TEST(Checkpoint, DenseLayersBetweenExperts) {
  Json json = small_config("qwen3_moe");
  json["mlp_only_layers"] = {1};
  const TestTensors tensors = random_tensors(ModelConfig::from_json(json, "test"));
  const fs::path folder = fresh_folder("qwen3-moe-dense");
  write_hub(folder, json, tensors);
  const auto checkpoint = open_checkpoint(folder);
  EXPECT_TRUE(checkpoint->has("model.layers.1.mlp.gate_proj.weight"));
  EXPECT_FALSE(checkpoint->has("model.layers.1.mlp.gate.weight"));
  expect_same(*checkpoint, tensors);
}

TEST(Checkpoint, GemmaWithinItsMultimodalWrapper) {
  for (const std::string prefix : {"language_model.", "model.language_model."}) {
    const Json text = small_config("gemma3_text");
    const TestTensors tensors = random_tensors(ModelConfig::from_json(text, "test"));
    TestTensors stored;
    for (const auto& [name, tensor] : tensors)
      stored[prefix + (prefix[0] == 'm' ? name.substr(6) : name)] = tensor;
    stored["vision_tower.vision_model.embeddings.patch_embedding.bias"] = {{2}, {1, 2}};
    const fs::path folder = fresh_folder("gemma-" + std::to_string(prefix.size()));
    write_hub(folder, {{"model_type", "gemma3"}, {"text_config", text}}, stored);
    expect_same(*open_checkpoint(folder), tensors);
  }
}

TEST(Checkpoint, BareNamesAndKnownExtras) {
  const Json json = small_config("llama");
  const TestTensors tensors = random_tensors(ModelConfig::from_json(json, "test"));
  TestTensors stored;
  for (const auto& [name, tensor] : tensors)
    stored[name.starts_with("model.") ? name.substr(6) : name] = tensor;
  stored["layers.0.self_attn.rotary_emb.inv_freq"] = {{5}, {1, 2, 3, 4, 5}};
  const fs::path folder = fresh_folder("bare");
  write_hub(folder, json, stored);
  expect_same(*open_checkpoint(folder), tensors);
}

TEST(Checkpoint, WithoutADtypeTheWeightsTell) {
  Json json = small_config("gemma3_text");
  json.erase("torch_dtype");
  json["hidden_size"] = 24;
  const fs::path folder = fresh_folder("no-dtype");
  write_hub(folder, json, random_tensors(ModelConfig::from_json(json, "test")));
  const auto checkpoint = open_checkpoint(folder);
  EXPECT_EQ(checkpoint->config().dtype, "float32");
  EXPECT_EQ(checkpoint->config().embedding_scale, std::sqrt(24.0f));  // not rounded to BF16
}

TEST(Checkpoint, HeadBesideTiedEmbeddings) {
  Json json = small_config("llama");
  const TestTensors untied = random_tensors(ModelConfig::from_json(json, "test"));
  json["tie_word_embeddings"] = true;
  TestTensors equal = untied;
  equal["lm_head.weight"] = equal["model.embed_tokens.weight"];
  write_hub(fresh_folder("tied-equal"), json, equal);
  const auto same = open_checkpoint(fs::path(QUATRAIN_BINARY_DIR) / "model-tests" / "tied-equal");
  EXPECT_TRUE(same->config().tied_embeddings);
  EXPECT_FALSE(same->has("lm_head.weight"));
  write_hub(fresh_folder("tied-different"), json, untied);
  const auto different = open_checkpoint(fs::path(QUATRAIN_BINARY_DIR) / "model-tests" / "tied-different");
  EXPECT_FALSE(different->config().tied_embeddings);
  expect_same(*different, untied);
}

TEST(Checkpoint, OneErrorListsAllThatIsWrong) {
  const Json json = small_config("llama");
  TestTensors tensors = random_tensors(ModelConfig::from_json(json, "test"));
  tensors.erase("model.layers.2.mlp.up_proj.weight");
  tensors.erase("lm_head.weight");
  tensors["model.layers.7.mlp.up_proj.weight"] = {{1}, {0}};
  tensors["model.layers.0.self_attn.q_proj.bias"] = {{30}, std::vector<float>(30)};
  tensors["model.norm.weight"] = {{12}, std::vector<float>(12)};
  const fs::path folder = fresh_folder("wrong");
  write_hub(folder, json, tensors);
  const std::string error = open_error(folder);
  for (const char* word : {"missing (2)", "lm_head.weight [40, 24]", "model.layers.2.mlp.up_proj.weight",
                           "unexpected (2)", "model.layers.7.mlp.up_proj.weight", "q_proj.bias",
                           "misshapen (1)", "model.norm.weight is [12], not [24]"})
    EXPECT_NE(error.find(word), std::string::npos) << word << " in " << error;
}

TEST(Checkpoint, IntegersAreNoWeights) {
  const fs::path folder = fresh_folder("integers");
  const Json json = small_config("llama");
  write_hub(folder, json, random_tensors(ModelConfig::from_json(json, "test")));
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::string bytes = read_file(entry.path());
    const size_t name = bytes.find("\"model.layers.1.mlp.up_proj.weight\":{");
    if (name != std::string::npos) write_file(entry.path(), bytes.replace(bytes.find("F32", name), 3, "I32"));
  }
  EXPECT_NE(open_error(folder).find("model.layers.1.mlp.up_proj.weight holds I32"), std::string::npos)
      << open_error(folder);
}

TEST(Checkpoint, NonFiniteWeightsNameTheirPlace) {
  const Json json = small_config("qwen2");
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    TestTensors tensors = random_tensors(ModelConfig::from_json(json, "test"));
    tensors["model.layers.1.mlp.down_proj.weight"].values[5 * 36 + 7] = bad;
    const fs::path folder = fresh_folder("nan");
    write_hub(folder, json, tensors);
    const auto checkpoint = open_checkpoint(folder);
    EXPECT_NO_THROW(checkpoint->read_rows("model.layers.1.mlp.down_proj.weight", 0, 5));
    try {
      checkpoint->read_rows("model.layers.1.mlp.down_proj.weight", 4, 6);
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("model.layers.1.mlp.down_proj.weight"), std::string::npos) << text;
      EXPECT_NE(text.find("row 5, column 7"), std::string::npos) << text;
    }
  }
}

TEST(Checkpoint, RefusesWhatIsNoModel) {
  EXPECT_NE(open_error("/no/such/model").find("no such model"), std::string::npos);
  const fs::path folder = fresh_folder("none");
  EXPECT_NE(open_error(folder).find("config.json"), std::string::npos);
  write_file(folder / "config.json", small_config("llama").dump());
  EXPECT_NE(open_error(folder).find("safetensors"), std::string::npos) << open_error(folder);
  Json artifact = small_config("llama");
  artifact["quantization_config"] = {{"quant_method", "quatrain"}};
  write_file(folder / "config.json", artifact.dump());
  EXPECT_NE(open_error(folder).find("artifact"), std::string::npos) << open_error(folder);
  write_file(folder / "config.json", small_config("llama").dump());
  write_file(folder / "hf_quant_config.json", R"({"quantization": {"quant_algo": "NVFP4"}})");
  EXPECT_NE(open_error(folder).find("NVFP4"), std::string::npos) << open_error(folder);
  write_file(folder / "model.txt", "x");
  EXPECT_NE(open_error(folder / "model.txt").find("not a model"), std::string::npos);
}

TEST(Checkpoint, FingerprintSeesEveryChange) {
  const Json json = small_config("llama");
  TestTensors tensors = random_tensors(ModelConfig::from_json(json, "test"));
  const auto fingerprint = [&](const Json& config) {
    const fs::path folder = fresh_folder("fingerprint");
    write_hub(folder, config, tensors);
    return open_checkpoint(folder)->fingerprint();
  };
  const std::string first = fingerprint(json);
  EXPECT_EQ(fingerprint(json), first);
  Json other = json;
  other["rope_theta"] = 20000;
  EXPECT_NE(fingerprint(other), first);
  tensors["model.norm.weight"].values[3] += 1;
  EXPECT_NE(fingerprint(json), first);
}

}  // namespace
}  // namespace quatrain
