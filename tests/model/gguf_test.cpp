// GGUF and llama2.c files give the same canonical tensors and the same arithmetic as the hub's files of the
// model.
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "checkpoint/gguf_writer.h"
#include "model/checkpoint.h"
#include "support/shared.h"
#include "test_model.h"

namespace quatrain {
namespace {

Json small_config(const std::string& model_type) {
  Json json = {{"model_type", model_type},
               {"vocab_size", 40},
               {"hidden_size", 24},
               {"intermediate_size", 36},
               {"num_hidden_layers", 3},
               {"num_attention_heads", 3},
               {"head_dim", 8},
               {"num_key_value_heads", 1},
               {"max_position_embeddings", 64},
               {"sliding_window", nullptr},
               {"rope_theta", 20000.0},
               {"rms_norm_eps", 1e-5},
               {"bos_token_id", 1},
               {"eos_token_id", 2},
               {"torch_dtype", "float32"}};
  if (model_type == "mixtral" || model_type == "qwen3_moe") {
    json["num_local_experts"] = 3;
    json["num_experts_per_tok"] = 2;
    json["moe_intermediate_size"] = 12;
    json["norm_topk_prob"] = true;
  }
  if (model_type == "gemma3_text") {
    json["sliding_window"] = 16;
    json["query_pre_attn_scalar"] = 8;
    json["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  }
  return json;
}

// Meta's order of q and k rows: (i, i + D/2) of each head side by side.
TestTensor pair_rows(const TestTensor& tensor, int64_t head_dim) {
  const int64_t rows = tensor.shape[0], width = tensor.shape.size() < 2 ? 1 : tensor.shape[1];
  TestTensor paired{tensor.shape, {}};
  for (int64_t head = 0; head < rows; head += head_dim) {
    for (int64_t i = 0; i < head_dim / 2; ++i) {
      for (const int64_t row : {head + i, head + i + head_dim / 2})
        paired.values.insert(paired.values.end(), tensor.values.begin() + row * width,
                             tensor.values.begin() + (row + 1) * width);
    }
  }
  return paired;
}

// The model as llama.cpp's converter names and stacks it.
std::vector<std::pair<std::string, TestTensor>> gguf_tensors(const ModelConfig& config,
                                                             const TestTensors& tensors, bool paired) {
  std::vector<std::pair<std::string, TestTensor>> out;
  const auto add = [&](const std::string& name, const std::string& canonical) {
    for (const std::string suffix : {".weight", ".bias"}) {
      const auto found = tensors.find(canonical + suffix);
      if (found == tensors.end()) continue;
      const bool rotated = canonical.ends_with("q_proj") || canonical.ends_with("k_proj");
      TestTensor tensor = paired && rotated ? pair_rows(found->second, config.head_dim) : found->second;
      if (config.sandwich_norms && canonical.find("norm") != canonical.npos)
        for (float& value : tensor.values) value += 1;
      out.emplace_back(name + suffix, std::move(tensor));
    }
  };
  add("token_embd", "model.embed_tokens");
  add("output_norm", "model.norm");
  add("output", "lm_head");
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string block = fmt::format("blk.{}.", layer), prefix = fmt::format("model.layers.{}.", layer);
    const std::string mlp = prefix + "mlp.", attention = prefix + "self_attn.";
    add(block + "attn_norm", prefix + "input_layernorm");
    if (config.architecture == "phi3") {
      out.emplace_back(
          block + "attn_qkv.weight",
          stack(tensors,
                {attention + "q_proj.weight", attention + "k_proj.weight", attention + "v_proj.weight"},
                {config.query_width() + 2 * config.kv_width(), config.hidden}));
      out.emplace_back(block + "ffn_up.weight",
                       stack(tensors, {mlp + "gate_proj.weight", mlp + "up_proj.weight"},
                             {2 * config.intermediate, config.hidden}));
    } else {
      for (const auto& [name, canonical] :
           {std::pair{"attn_q", "q_proj"}, {"attn_k", "k_proj"}, {"attn_v", "v_proj"}})
        add(block + name, attention + canonical);
      for (const auto& [name, canonical] : {std::pair{"ffn_gate", "gate_proj"}, {"ffn_up", "up_proj"}})
        add(block + name, mlp + canonical);
    }
    add(block + "attn_output", attention + "o_proj");
    add(block + "attn_q_norm", attention + "q_norm");
    add(block + "attn_k_norm", attention + "k_norm");
    add(block + "ffn_down", mlp + "down_proj");
    if (config.sandwich_norms) {
      add(block + "post_attention_norm", prefix + "post_attention_layernorm");
      add(block + "ffn_norm", prefix + "pre_feedforward_layernorm");
      add(block + "post_ffw_norm", prefix + "post_feedforward_layernorm");
    } else {
      add(block + "ffn_norm", prefix + "post_attention_layernorm");
    }
    if (!config.is_moe(layer)) continue;
    add(block + "ffn_gate_inp", mlp + "gate");
    for (const auto& [name, canonical] : {std::pair{"ffn_gate_exps", "gate_proj"},
                                          {"ffn_up_exps", "up_proj"},
                                          {"ffn_down_exps", "down_proj"}}) {
      std::vector<std::string> parts;
      for (int64_t expert = 0; expert < config.moe.experts; ++expert)
        parts.push_back(fmt::format("{}experts.{}.{}.weight", mlp, expert, canonical));
      const auto& shape = tensors.at(parts[0]).shape;
      out.emplace_back(fmt::format("{}{}.weight", block, name),
                       stack(tensors, parts, {config.moe.experts, shape[0], shape[1]}));
    }
  }
  return out;
}

void write_gguf(const fs::path& path, const std::string& architecture, const ModelConfig& config,
                const std::vector<std::pair<std::string, TestTensor>>& tensors,
                const std::function<void(GgufWriter&)>& extra = nullptr) {
  GgufWriter writer(path);
  writer.set_string("general.architecture", architecture);
  const auto key = [&](const char* name) { return architecture + "." + name; };
  const auto u32 = [&](const char* name, int64_t value) {
    writer.set_u32(key(name), static_cast<uint32_t>(value));
  };
  u32("block_count", config.layers);
  u32("context_length", config.max_positions);
  u32("embedding_length", config.hidden);
  u32("feed_forward_length", config.intermediate);
  u32("attention.head_count", config.heads);
  u32("attention.head_count_kv", config.kv_heads);
  u32("attention.key_length", config.head_dim);
  u32("attention.value_length", config.head_dim);
  u32("rope.dimension_count", config.head_dim);
  writer.set_f32(key("rope.freq_base"), static_cast<float>(config.rope.theta));
  writer.set_f32(key("attention.layer_norm_rms_epsilon"), config.norm_epsilon);
  if (config.moe.experts > 0) {
    u32("expert_count", config.moe.experts);
    u32("expert_used_count", config.moe.experts_per_token);
    if (architecture == "qwen3moe") u32("expert_feed_forward_length", config.moe.intermediate);
  }
  if (architecture == "gemma3") {
    u32("attention.sliding_window", 16);
    writer.set_string(key("rope.scaling.type"), "linear");
    writer.set_f32(key("rope.scaling.factor"), 8);
  }
  writer.set_u32("tokenizer.ggml.bos_token_id", 1);
  writer.set_u32("tokenizer.ggml.eos_token_id", 2);
  if (extra) extra(writer);
  for (const auto& [name, tensor] : tensors) writer.declare(name, tensor.shape, "F32");
  for (const auto& [name, tensor] : tensors) writer.write(name, tensor.values);
  writer.finish();
}

class Gguf : public testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(Gguf, OpensAsTheHubModel) {
  const auto& [model_type, architecture] = GetParam();
  for (const bool biased : {false, true}) {
    Json json = small_config(model_type);
    if (std::string_view(model_type) == "llama" && biased) json["attention_bias"] = json["mlp_bias"] = true;
    const ModelConfig config = ModelConfig::from_json(json, "test");
    const TestTensors tensors = random_tensors(config);
    const fs::path path = fresh_folder(std::string("gguf-") + model_type) / "model.gguf";
    write_gguf(path, architecture, config,
               gguf_tensors(config, tensors, std::string_view(architecture) == "llama"));
    const auto checkpoint = open_checkpoint(path);
    ModelConfig expected = config;
    if (config.sandwich_norms) expected.norm_offset = 0;
    EXPECT_EQ(checkpoint->config(), expected) << checkpoint->config().to_json() << expected.to_json();
    EXPECT_EQ(ModelConfig::from_json(checkpoint->config().to_json(), "again"), checkpoint->config());
    for (const auto& [name, tensor] : tensors) {
      SCOPED_TRACE(name);
      ASSERT_EQ(checkpoint->shape(name), tensor.shape);
      std::vector<float> values = tensor.values;
      if (config.sandwich_norms && name.find("norm") != name.npos)
        for (float& value : values) value += 1;
      EXPECT_EQ(checkpoint->read(name), values);
      if (tensor.shape.size() == 2 && tensor.shape[0] > 5)  // rows that cut a head
        EXPECT_EQ(
            checkpoint->read_rows(name, 3, 5),
            std::vector<float>(values.begin() + 3 * tensor.shape[1], values.begin() + 5 * tensor.shape[1]));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, Gguf,
                         testing::Values(std::pair{"llama", "llama"}, std::pair{"mixtral", "llama"},
                                         std::pair{"qwen2", "qwen2"}, std::pair{"qwen3", "qwen3"},
                                         std::pair{"qwen3_moe", "qwen3moe"},
                                         std::pair{"gemma3_text", "gemma3"}, std::pair{"phi3", "phi3"}),
                         [](const auto& info) { return std::string(info.param.first); });

// Whatever counts tokens in a file: more texts than embeddings are refused, other contradictions are told.
TEST(GgufModel, VocabularySizesThatContradictEachOtherAreTold) {
  const ModelConfig config = ModelConfig::from_json(small_config("llama"), "test");  // 40 tokens
  const auto tensors = gguf_tensors(config, random_tensors(config), true);
  const fs::path path = fresh_folder("gguf-vocabulary") / "model.gguf";
  const auto opened = [&](int64_t count, size_t listed) {
    write_gguf(path, "llama", config, tensors, [&](GgufWriter& writer) {
      writer.set_u32("llama.vocab_size", static_cast<uint32_t>(count));
      writer.set_strings("tokenizer.ggml.tokens", std::vector<std::string>(listed, "a"));
    });
    testing::internal::CaptureStdout();
    std::string error;
    try {
      EXPECT_EQ(open_checkpoint(path)->config().vocabulary, 40);
    } catch (const Error& refused) {
      error = refused.what();
    }
    return error + testing::internal::GetCapturedStdout();
  };
  EXPECT_EQ(opened(40, 40), "");
  for (const auto& [told, parts] : {std::pair(opened(41, 40), std::pair("llama.vocab_size is 41", "40 rows")),
                                    {opened(40, 39), {"39 tokens", "40 rows"}},
                                    {opened(40, 41), {"41 tokens", "only 40 rows"}}}) {
    EXPECT_NE(told.find("model.gguf"), told.npos) << told;
    EXPECT_NE(told.find(parts.first), told.npos) << told;
    EXPECT_NE(told.find(parts.second), told.npos) << told;
  }
}

TEST(GgufModel, RopeFrequencyDivisorsBecomeLlama3Scaling) {
  for (const bool standard : {true, false}) {
    Json json = small_config("llama");
    json["head_dim"] = 16;
    json["rope_theta"] = 5e5;
    json["max_position_embeddings"] = 131072;
    if (standard)
      json["rope_scaling"] = {{"rope_type", "llama3"},
                              {"factor", 32.0},
                              {"low_freq_factor", 1.0},
                              {"high_freq_factor", 4.0},
                              {"original_max_position_embeddings", 8192}};
    const ModelConfig config = ModelConfig::from_json(json, "test");
    const TestTensors tensors = random_tensors(config);
    auto stored = gguf_tensors(config, tensors, true);
    // As the converter computes them: original frequency over scaled frequency.
    const std::vector<float> plain = RopeConfig{.theta = 5e5}.inverse_frequencies(16),
                             scaled = config.rope.inverse_frequencies(16);
    TestTensor divisors{{8}, {}};
    for (size_t i = 0; i < 8; ++i)
      divisors.values.push_back(standard ? plain[i] / scaled[i] : 1.0f + static_cast<float>(i * i));
    stored.emplace_back("rope_freqs.weight", divisors);
    const fs::path path = fresh_folder("gguf-llama3") / "model.gguf";
    write_gguf(path, "llama", config, stored);
    const std::vector<float> frequencies = open_checkpoint(path)->config().rope.inverse_frequencies(16);
    if (standard) {
      EXPECT_EQ(open_checkpoint(path)->config(), config);
    } else {
      EXPECT_EQ(open_checkpoint(path)->config().rope.scaling, RopeConfig::Scaling::Divisors);
      for (size_t i = 0; i < 8; ++i) EXPECT_FLOAT_EQ(frequencies[i], plain[i] / divisors.values[i]);
    }
  }
}

TEST(GgufModel, YarnScaling) {
  Json json = small_config("qwen2");
  const ModelConfig config = ModelConfig::from_json(json, "test");
  const fs::path path = fresh_folder("gguf-yarn") / "model.gguf";
  write_gguf(path, "qwen2", config, gguf_tensors(config, random_tensors(config), false),
             [](GgufWriter& writer) {
               writer.set_string("qwen2.rope.scaling.type", "yarn");
               writer.set_f32("qwen2.rope.scaling.factor", 4);
               writer.set_u32("qwen2.rope.scaling.original_context_length", 16);
             });
  json["rope_scaling"] = {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 16}};
  EXPECT_EQ(open_checkpoint(path)->config(), ModelConfig::from_json(json, "test"));
}

std::string open_error(const fs::path& path) {
  try {
    open_checkpoint(path);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(GgufModel, RefusesByName) {
  const Json json = small_config("qwen2");
  const ModelConfig config = ModelConfig::from_json(json, "test");
  const auto tensors = gguf_tensors(config, random_tensors(config), false);
  const fs::path path = fresh_folder("gguf-refused") / "model.gguf";
  const auto error_with = [&](const std::string& architecture,
                              const std::function<void(GgufWriter&)>& extra) {
    write_gguf(path, architecture, config, tensors, extra);
    return open_error(path);
  };
  for (const char* architecture : {"gemma2", "gpt-oss", "qwen35", "glm4", "falcon"})
    EXPECT_NE(error_with(architecture, nullptr).find(architecture), std::string::npos);
  EXPECT_NE(error_with("qwen2", [](GgufWriter& w) { w.set_string("qwen2.rope.scaling.type", "longrope"); })
                .find("longrope"),
            std::string::npos);
  EXPECT_NE(error_with("qwen2", [](GgufWriter& w) { w.set_f32("qwen2.final_logit_softcapping", 30); })
                .find("softcapping"),
            std::string::npos);
  EXPECT_NE(error_with("qwen2", [](GgufWriter& w) { w.set_u32("split.count", 3); }).find("split"),
            std::string::npos);
  EXPECT_EQ(error_with("qwen2", nullptr), "");
  auto missing = tensors;
  std::erase_if(missing, [](const auto& tensor) { return tensor.first == "blk.1.attn_k.bias"; });
  missing.emplace_back("blk.0.attn_sinks.weight", TestTensor{{3}, {1, 2, 3}});
  write_gguf(path, "qwen2", config, missing);
  const std::string error = open_error(path);
  EXPECT_NE(error.find("model.layers.1.self_attn.k_proj.bias"), std::string::npos) << error;
  EXPECT_NE(error.find("blk.0.attn_sinks.weight"), std::string::npos) << error;
}

TEST(GgufModel, ErrorsNameItsOwnKeys) {
  const ModelConfig config = ModelConfig::from_json(small_config("qwen2"), "test");
  const auto tensors = gguf_tensors(config, random_tensors(config), false);
  const fs::path path = fresh_folder("gguf-keys") / "model.gguf";
  const auto error_with = [&](const std::function<void(ModelConfig&)>& change) {
    ModelConfig changed = config;
    change(changed);
    write_gguf(path, "qwen2", changed, tensors);
    return open_error(path);
  };
  for (const auto& [error, key] :
       {std::pair(error_with([](ModelConfig& c) { c.rope.theta = 0; }), "qwen2.rope.freq_base"),
        {error_with([](ModelConfig& c) { c.max_positions = 0; }), "qwen2.context_length"},
        {error_with([](ModelConfig& c) { c.hidden = 1 << 30; }), "qwen2.embedding_length"},
        {error_with([](ModelConfig& c) { c.norm_epsilon = 2; }), "qwen2.attention.layer_norm_rms_epsilon"}}) {
    EXPECT_NE(error.find(key), error.npos) << error;
    EXPECT_NE(error.find("model.gguf"), error.npos) << error;
  }
}

TEST(Llama2c, RowsComeInModelOrder) {
  if (!shared_dir()) GTEST_SKIP() << "no shared data";
  const fs::path path = *shared_dir() / "data" / "models" / "stories260K" / "stories260K.bin";
  const auto checkpoint = open_checkpoint(path);
  const ModelConfig& config = checkpoint->config();
  EXPECT_EQ(config.hidden, 64);
  EXPECT_EQ(config.layers, 5);
  EXPECT_EQ(config.heads, 8);
  EXPECT_EQ(config.kv_heads, 4);
  EXPECT_EQ(config.vocabulary, 512);
  EXPECT_TRUE(config.tied_embeddings);
  // 28 bytes of header, the embedding [512, 64], 5 norms, then wq [5, 64, 64].
  const std::string bytes = read_file(path);
  const auto value = [&](int64_t index) {
    float out = 0;
    std::memcpy(&out, bytes.data() + 28 + 4 * index, 4);
    return out;
  };
  const std::vector<float> embedding = checkpoint->read("model.embed_tokens.weight");
  EXPECT_EQ(embedding[1000], value(1000));
  const int64_t wq = 512 * 64 + 5 * 64;
  const std::vector<float> q = checkpoint->read("model.layers.0.self_attn.q_proj.weight");
  for (int64_t i = 0; i < 4;
       ++i) {  // heads of 8 rows: row i pairs with i + 4; the file has them at 2i and 2i + 1
    EXPECT_EQ(q[static_cast<size_t>((8 + i) * 64 + 5)], value(wq + (8 + 2 * i) * 64 + 5));
    EXPECT_EQ(q[static_cast<size_t>((8 + 4 + i) * 64 + 5)], value(wq + (8 + 2 * i + 1) * 64 + 5));
  }
}

}  // namespace
}  // namespace quatrain
