// A config.json that tells something else than the artifact's tensors is refused, by what it tells wrong.
#include "model/artifact_config.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "test_model.h"

namespace quatrain {
namespace {

class ArtifactConfig : public testing::Test {
 protected:
  ArtifactConfig()
      : folder_(fresh_folder(std::string("artifact-config-") +
                             testing::UnitTest::GetInstance()->current_test_info()->name()) /
                "artifact") {}

  static Json model_json(bool tied) {
    return {{"model_type", "qwen2"},    {"vocab_size", 40},       {"hidden_size", 64},
            {"intermediate_size", 96},  {"num_hidden_layers", 2}, {"num_attention_heads", 4},
            {"num_key_value_heads", 2}, {"head_dim", 16},         {"tie_word_embeddings", tied}};
  }

  static NibblePlanes planes(int64_t rows, int64_t columns, int bits) {
    NibblePlanes planes;
    planes.rows = rows;
    planes.columns = columns;
    planes.residual_block = 32;
    planes.hi.assign(static_cast<size_t>(rows * columns / 2), 0x21);
    planes.scale.assign(static_cast<size_t>(rows), 0.5f);
    if (bits != 8) return planes;
    for (int32_t block = 0; block < planes.block_rows() * (columns / 32); ++block)
      planes.residual_index.push_back(block);
    // Rows past the edge have no low nibbles.
    for (const int32_t block : planes.residual_index)
      for (int64_t row = 0; row < kResidualRows; ++row)
        planes.lo.insert(planes.lo.end(), 16, block / (columns / 32) * kResidualRows + row < rows ? 0x43 : 0);
    return planes;
  }

  // Qwen2 with 4-bit linears, an 8-bit embedding, and an 8-bit head of its own unless tied.
  void write(bool tied = false) {
    const ModelConfig config = ModelConfig::from_json(model_json(tied), "test");
    QuantizationConfig quantization;
    quantization.defaults.activation = {.bits = 4, .group = 32, .symmetric = false};
    quantization.defaults.residual_block = 32;
    quantization.kv.bits = 4;
    quantization.embedding_bits = quantization.lm_head_bits = 8;
    quantization.lm_head_tied = tied;
    ArtifactWriter writer(folder_);
    writer.add_planes("model.embed_tokens", planes(40, 64, 8));
    if (!tied) writer.add_planes("lm_head", planes(40, 64, 8));
    const std::vector<float> ones(64, 1.0f);
    writer.add_tensor("model.norm.weight", {64}, ones, "F32");
    for (int64_t layer = 0; layer < config.layers; ++layer) {
      for (const LinearShape& linear : linears_of_layer(config, layer)) {
        NibblePlanes matrix = planes(linear.out, linear.in, 4);
        if (linear.bias) matrix.bias.assign(static_cast<size_t>(linear.out), 0.25f);
        writer.add_planes(linear.name, matrix);
      }
      for (const PlainShape& plain : plain_tensors_of_layer(config, layer))
        writer.add_tensor(plain.name, plain.shape, ones, "F32");
    }
    writer.finish(config.to_json(), quantization, "name = \"test\"\n", Json::object());
  }

  // Both at once: config.json with `change` applied is refused, and the text says each of `wanted`.
  void refuses(const std::function<void(Json& config)>& change, const std::vector<std::string>& wanted) {
    const Json sound = read_json(folder_ / "config.json");
    Json config = sound;
    config.erase("layer_types");  // follows from the number of layers
    change(config);
    write_file(folder_ / "config.json", config.dump());
    try {
      artifact_config(ArtifactReader(folder_));
      ADD_FAILURE() << "accepted; wanted: " << wanted.front();
    } catch (const Error& error) {
      for (const std::string& text : wanted)
        EXPECT_NE(std::string_view(error.what()).find(text), std::string_view::npos) << error.what();
    }
    write_file(folder_ / "config.json", sound.dump());
  }

  fs::path folder_;
};

TEST_F(ArtifactConfig, AcceptsWhatIsTrue) {
  write();
  EXPECT_EQ(artifact_config(ArtifactReader(folder_)).layers, 2);
  fs::remove_all(folder_);
  write(true);
  EXPECT_TRUE(artifact_config(ArtifactReader(folder_)).tied_embeddings);
}

TEST_F(ArtifactConfig, TensorsThatAreNotTheModels) {
  write();
  refuses([](Json& config) { config["num_hidden_layers"] = 1; },
          {"unexpected", "model.layers.1.mlp.down_proj.weight_hi"});
  refuses([](Json& config) { config["num_hidden_layers"] = 3; },
          {"missing", "model.layers.2.mlp.down_proj.weight", "model.layers.2.self_attn.q_proj.bias"});
  refuses([](Json& config) { config["num_attention_heads"] = 2; },
          {"misshapen", "model.layers.0.self_attn.q_proj.weight_hi is [64, 32], not [32, 32]"});
  refuses([](Json& config) { config["vocab_size"] = 39; }, {"lm_head.weight_hi is [40, 32], not [39, 32]"});
}

TEST_F(ArtifactConfig, TiedOrNot) {
  write();
  const auto tie = [](bool flag, bool policy) {
    return [=](Json& config) {
      config["tie_word_embeddings"] = flag;
      config["quantization_config"]["lm_head"]["tied"] = policy;
    };
  };
  refuses(tie(true, true), {"has an lm_head", "tie_word_embeddings is true"});
  refuses(tie(true, false), {"has an lm_head", "tie_word_embeddings is true"});
  refuses(tie(false, true), {"has an lm_head", "lm_head.tied is true"});
  fs::remove_all(folder_);
  write(true);
  refuses(tie(false, true), {"has no lm_head", "tie_word_embeddings is false"});
  refuses(tie(true, false), {"lm_head"});
}

TEST_F(ArtifactConfig, BitsOfEmbeddingAndHead) {
  write();
  const auto bits = [](const char* name, int value) {
    return [=](Json& config) { config["quantization_config"][name]["bits"] = value; };
  };
  refuses(bits("embedding", 4), {"4 bits for model.embed_tokens", "6 of its 6 blocks"});
  refuses(bits("embedding", 16), {"16 bits for model.embed_tokens"});
  refuses(bits("lm_head", 4), {"4 bits for lm_head"});
}

TEST_F(ArtifactConfig, GroupsAndLayersOfTheKvCache) {
  write();
  const auto kv = [](const char* field, Json value) {
    return [=](Json& config) { config["quantization_config"]["kv"][field] = value; };
  };
  refuses(kv("group", 3), {"a group of 3 does not divide the 16 columns of a head"});
  refuses(kv("group", 32), {"a group of 32"});
  refuses(kv("layers", {{"1", {{"group", 5}}}}), {"a group of 5"});
  refuses(kv("layers", {{"2", {{"bits", 8}}}}), {"has no layer 2"});
}

}  // namespace
}  // namespace quatrain
