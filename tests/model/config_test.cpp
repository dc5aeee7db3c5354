// ModelConfig: defaults of each family, refusals by name, and hostile values.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "model/architecture.h"
#include "model/shape_file.h"
#include "support/shared.h"

namespace quatrain {
namespace {

Json base_config(const std::string& model_type = "llama") {
  return {{"model_type", model_type}, {"vocab_size", 96},         {"hidden_size", 64},
          {"intermediate_size", 128}, {"num_hidden_layers", 4},   {"num_attention_heads", 4},
          {"head_dim", 16},           {"num_key_value_heads", 2}, {"max_position_embeddings", 256}};
}

ModelConfig read(const Json& json) {
  return ModelConfig::from_json(json, "config.json");
}

// The error text; empty when there is none.
std::string error_of(const Json& json) {
  try {
    read(json);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

void expect_refused(const Json& json, const std::string& word) {
  const std::string error = error_of(json);
  EXPECT_NE(error.find(word), std::string::npos)
      << "wanted \"" << word << "\" in \"" << error << "\" for " << json.dump();
  EXPECT_NE(error.find("config.json"), std::string::npos) << error;
}

TEST(Config, EveryRowReadsBackItsOwnJson) {
  for (const Architecture& row : architecture_table()) {
    Json json = base_config(std::string(row.name));
    json["sliding_window"] = row.window == Architecture::Window::Alternating ? Json(8) : Json();
    json["attention_bias"] = true;
    json["eos_token_id"] = {2, 5};
    const ModelConfig config = read(json);
    EXPECT_EQ(config.architecture, row.name);
    EXPECT_EQ(read(config.to_json()), config) << config.to_json().dump(1);
  }
}

TEST(Config, FlagsOfTheFamilies) {
  EXPECT_FALSE(read(base_config("llama")).qkv_bias);
  EXPECT_TRUE(read(base_config("qwen2")).qkv_bias);
  EXPECT_FALSE(read(base_config("qwen2")).output_bias);
  EXPECT_TRUE(read(base_config("qwen3")).qk_norm);
  const ModelConfig gemma = read(base_config("gemma3_text"));
  EXPECT_TRUE(gemma.sandwich_norms && gemma.qk_norm && gemma.tied_embeddings);
  EXPECT_EQ(gemma.norm_offset, 1);
  EXPECT_EQ(gemma.activation, Activation::GeluTanh);
  EXPECT_EQ(gemma.attention_scale, 1.0f / 16);  // query_pre_attn_scalar's default is 256
  EXPECT_EQ(gemma.rope.theta, 1e6);
  EXPECT_EQ(gemma.local_rope.theta, 1e4);
  Json biased = base_config("llama");
  biased["attention_bias"] = biased["mlp_bias"] = true;
  const ModelConfig with_bias = read(biased);
  EXPECT_TRUE(with_bias.qkv_bias && with_bias.output_bias && with_bias.mlp_bias);
}

TEST(Config, EmbeddingScaleIsRoundedToTheWeightsType) {
  Json json = base_config("gemma3_text");
  json["hidden_size"] = 1152;
  json["dtype"] = "float32";
  EXPECT_EQ(read(json).embedding_scale, std::sqrt(1152.0f));
  json["dtype"] = "bfloat16";
  EXPECT_EQ(read(json).embedding_scale, 34.0f);  // 33.94 lies between 33.75 and 34
  EXPECT_EQ(read(base_config("llama")).embedding_scale, 1);
}

TEST(Config, SlidingWindows) {
  using Windows = std::vector<int64_t>;
  Json mistral = base_config("mistral");
  mistral["sliding_window"] = 32;
  EXPECT_EQ(read(mistral).sliding_window, (Windows{32, 32, 32, 32}));
  mistral["sliding_window"] = nullptr;
  EXPECT_EQ(read(mistral).sliding_window, (Windows{0, 0, 0, 0}));
  mistral.erase("sliding_window");
  EXPECT_EQ(read(mistral).sliding_window, (Windows{4096, 4096, 4096, 4096}));

  Json qwen = base_config("qwen2");
  qwen["sliding_window"] = 32;
  qwen["max_window_layers"] = 3;
  EXPECT_EQ(read(qwen).sliding_window, (Windows{0, 0, 0, 0}));
  qwen["use_sliding_window"] = true;
  EXPECT_EQ(read(qwen).sliding_window, (Windows{0, 0, 0, 32}));
  qwen["layer_types"] = {"full_attention", "sliding_attention", "full_attention", "full_attention"};
  EXPECT_EQ(read(qwen).sliding_window, (Windows{0, 32, 0, 0}));
  EXPECT_EQ(read(read(qwen).to_json()), read(qwen));
  qwen["use_sliding_window"] = false;
  expect_refused(qwen, "sliding_window");

  Json gemma = base_config("gemma3_text");
  gemma["sliding_window"] = 8;
  gemma["sliding_window_pattern"] = 3;
  EXPECT_EQ(read(gemma).sliding_window, (Windows{8, 8, 0, 8}));
  gemma["layer_types"] = {"sliding_attention", "full_attention", "full_attention", "sliding_attention"};
  EXPECT_EQ(read(gemma).sliding_window, (Windows{8, 0, 0, 8}));
}

TEST(Config, RopeOfEachLayerType) {
  Json json = base_config("gemma3_text");
  json["sliding_window"] = 8;
  json["rope_scaling"] = {{"type", "linear"}, {"factor", 8}};
  json["rope_local_base_freq"] = 20000;
  const ModelConfig old_style = read(json);
  EXPECT_EQ(old_style.rope.factor, 8);
  EXPECT_EQ(old_style.local_rope.factor, 1);
  EXPECT_EQ(old_style.local_rope.theta, 20000);
  EXPECT_EQ(read(old_style.to_json()), old_style);
  json.erase("rope_scaling");
  json.erase("rope_local_base_freq");
  json["rope_parameters"] = {
      {"full_attention", {{"rope_type", "linear"}, {"factor", 8}, {"rope_theta", 1e6}}},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 20000}}}};
  EXPECT_EQ(read(json), old_style);
  json["rope_parameters"]["sliding_attention"] = {{"rope_type", "linear"}, {"factor", 2}};
  const ModelConfig both = read(json);
  EXPECT_EQ(both.local_rope.scaling, RopeConfig::Scaling::Linear);
  EXPECT_EQ(read(both.to_json()), both);
}

TEST(Config, RopeOfBothStylesMustAgree) {
  Json json = base_config("llama");
  json["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 2}, {"rope_theta", 5000}};
  json["rope_scaling"] = {{"type", "linear"}, {"factor", 2}};
  EXPECT_EQ(read(json).rope.factor, 2);
  EXPECT_EQ(read(json).rope.theta, 5000);
  json["rope_scaling"]["factor"] = 4;
  expect_refused(json, "rope_scaling");
  json["rope_scaling"] = nullptr;
  EXPECT_EQ(read(json).rope.factor, 2);
}

TEST(Config, DenseLayersBetweenExperts) {
  Json json = base_config("qwen3_moe");
  json["num_experts"] = 4;
  json["num_experts_per_tok"] = 2;
  json["moe_intermediate_size"] = 32;
  json["decoder_sparse_step"] = 2;
  json["mlp_only_layers"] = {3};
  const ModelConfig config = read(json);
  EXPECT_EQ(config.moe_layer, (std::vector<bool>{false, true, false, false}));
  EXPECT_FALSE(config.moe.normalize_top_k);  // the class default of Qwen3-MoE
  EXPECT_EQ(read(config.to_json()), config);
  EXPECT_EQ(linears_of_layer(config, 0).size(), 7u);
  EXPECT_EQ(linears_of_layer(config, 1).size(), 4u + 3 * 4);
  EXPECT_EQ(linears_of_layer(config, 1).back().name, "model.layers.1.mlp.experts.3.down_proj");
  EXPECT_EQ(plain_tensors_of_layer(config, 1).back().name, "model.layers.1.mlp.gate.weight");
}

TEST(Config, NestedTextConfigOfGemma) {
  const Json json = {{"architectures", {"Gemma3ForConditionalGeneration"}},
                     {"model_type", "gemma3"},
                     {"eos_token_id", {1, 106}},
                     {"torch_dtype", "bfloat16"},
                     {"text_config",
                      {{"model_type", "gemma3_text"},
                       {"hidden_size", 2560},
                       {"intermediate_size", 10240},
                       {"num_hidden_layers", 34},
                       {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}},
                       {"sliding_window", 1024}}}};
  const ModelConfig config = read(json);  // what the 4B model's own file says; the rest are class defaults
  EXPECT_EQ(config.heads, 8);
  EXPECT_EQ(config.kv_heads, 4);
  EXPECT_EQ(config.head_dim, 256);
  EXPECT_EQ(config.vocabulary, 262208);
  EXPECT_EQ(config.eos, (std::vector<int64_t>{1, 106}));
  EXPECT_EQ(config.sliding_window[5], 0);
  EXPECT_EQ(config.sliding_window[6], 1024);
}

TEST(Config, RefusesByName) {
  const auto with = [](const char* key, Json value, const std::string& type = "llama") {
    Json json = base_config(type);
    json[key] = std::move(value);
    return json;
  };
  for (const char* type : {"gemma2", "gemma4", "gpt_oss", "glm4", "qwen3_5", "deepseek_v3", "mamba", ""})
    expect_refused(base_config(type), *type == 0 ? "architecture" : type);
  expect_refused(with("architectures", {"LlamaForSequenceClassification"}), "LlamaForSequenceClassification");
  expect_refused(with("architectures", {"Qwen2ForRewardModel"}, "qwen2"), "Qwen2ForRewardModel");
  EXPECT_EQ(error_of(with("architectures", {"LlamaModel"})), "");
  for (const char* rope : {"dynamic", "longrope", "su", "mrope", "proportional", "banana"})
    expect_refused(with("rope_scaling", {{"type", rope}, {"factor", 2}}),
                   rope == std::string("su") ? "longrope" : rope);
  expect_refused(with("rope_scaling", {{"type", "yarn"}, {"factor", 2}}, "phi3"), "longrope");
  expect_refused(with("rope_scaling", {{"type", "default"}, {"mrope_section", {1, 1, 1}}}), "mrope_section");
  expect_refused(with("hidden_act", "relu"), "relu");
  expect_refused(with("hidden_act", "gelu"), "gelu");
  expect_refused(with("attn_logit_softcapping", 50.0, "gemma3_text"), "attn_logit_softcapping");
  expect_refused(with("final_logit_softcapping", 30.0, "gemma3_text"), "final_logit_softcapping");
  expect_refused(with("use_bidirectional_attention", true, "gemma3_text"), "bidirectional");
  expect_refused(with("dual_chunk_attention_config", {{"chunk_size", 8}}, "qwen2"), "dual chunk");
  expect_refused(with("layer_types",
                      {"linear_attention", "full_attention", "full_attention", "full_attention"}, "qwen3"),
                 "linear_attention");
  expect_refused(with("shared_expert_intermediate_size", 32, "qwen3_moe"), "shared expert");
  expect_refused(with("use_qk_norm", true), "use_qk_norm");
  expect_refused(with("torch_dtype", "float8_e4m3fn"), "float8_e4m3fn");
  expect_refused(with("quantization_config", {{"quant_method", "awq"}}), "awq");
  EXPECT_EQ(error_of(with("quantization_config", {{"quant_method", "quatrain"}})), "");
}

TEST(Config, RefusesHostileValues) {
  const std::vector<Json> hostile = {
      -1,   0,   1e300,         int64_t{1} << 40, std::numeric_limits<uint64_t>::max(),
      "64", 2.5, Json::array(), Json::object(),   true};
  for (const char* key :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "max_position_embeddings"}) {
    for (const Json& value : hostile) {
      Json json = base_config();
      json[key] = value;
      EXPECT_NE(error_of(json), "") << key << " = " << value.dump();
    }
  }
  for (const char* key :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}) {
    Json json = base_config();
    json.erase(key);
    expect_refused(json, key);
    json[key] = nullptr;
    expect_refused(json, key);
  }
  const auto refused = [](const char* key, Json value, const std::string& type = "llama") {
    Json json = base_config(type);
    json[key] = std::move(value);
    EXPECT_NE(error_of(json), "") << json.dump();
  };
  refused("num_key_value_heads", 3);
  refused("head_dim", 15);
  refused("partial_rotary_factor", 0.01);
  refused("partial_rotary_factor", -1);
  refused("partial_rotary_factor", 1.5);
  refused("rope_theta", 0);
  refused("rope_theta", -1e4);
  refused("rope_theta", "1e4");
  refused("rope_scaling", {{"type", "linear"}});
  refused("rope_scaling", {{"type", "linear"}, {"factor", 0}});
  refused("rope_scaling", {{"type", "linear"}, {"factor", "8"}});
  refused("rope_scaling", {{"type", "llama3"}, {"factor", 8}});
  refused("rope_scaling",
          {{"type", "llama3"}, {"factor", 8}, {"low_freq_factor", 4}, {"high_freq_factor", 4}});
  refused("rope_scaling", {{"type", "yarn"}, {"factor", 8}, {"original_max_position_embeddings", -5}});
  refused("rope_scaling", {{"type", 5}});
  refused("rope_scaling", "linear");
  refused("rms_norm_eps", 0);
  refused("rms_norm_eps", -1e-6);
  refused("tie_word_embeddings", "no");
  refused("architectures", "LlamaForCausalLM");
  refused("eos_token_id", {"a"});
  refused("eos_token_id", 2.5);
  refused("layer_types", {"full_attention"}, "qwen2");
  refused("sliding_window", -4, "mistral");
  refused("decoder_sparse_step", 0, "qwen3_moe");
  refused("num_experts_per_tok", 200, "qwen3_moe");
  refused("num_experts", 1 << 20, "qwen3_moe");
  refused("sliding_window_pattern", 0, "gemma3_text");
  refused("query_pre_attn_scalar", -2, "gemma3_text");
  EXPECT_THROW(ModelConfig::from_json(Json::array(), "x"), Error);
  EXPECT_THROW(ModelConfig::from_json(Json("text"), "x"), Error);
  EXPECT_THROW(ModelConfig::from_json({{"text_config", 5}}, "x"), Error);
  Json uneven = base_config();
  uneven.erase("head_dim");
  uneven["num_attention_heads"] = 6;
  expect_refused(uneven, "head_dim");
}

// Parameter counts that the models' authors publish, from the shared configs.
TEST(SharedConfigs, PassADryRunOrAreRefusedByName) {
  if (!shared_dir()) GTEST_SKIP() << "no shared data";
  const std::map<std::string, std::string> refused = {{"Qwen--Qwen3.5-27B_config.json", "qwen3_5"},
                                                      {"Qwen--Qwen3.5-35B-A3B_config.json", "qwen3_5_moe"},
                                                      {"google--gemma-4-26B-A4B_config.json", "gemma4"},
                                                      {"openai--gpt-oss-20b_config.json", "gpt_oss"},
                                                      {"gemma2_2b_it_config.json", "gemma2"},
                                                      {"gemma4_e2b_config.json", "gemma4"},
                                                      {"smollm3_3b_config.json", "no_rope_layer_interval"}};
  const std::map<std::string, double> billions = {
      {"meta-llama--Meta-Llama-3.1-8B_config.json", 8.03},
      {"meta-llama--Meta-Llama-3.1-70B_config.json", 70.55},
      {"meta-llama--Meta-Llama-3.1-405B_config.json", 405.85},
      {"mistralai--Mixtral-8x7B-v0.1_config.json", 46.70},
      {"mistralai--Mixtral-8x22B-v0.1_config.json", 140.62},
      {"Qwen--Qwen3-30B-A3B_config.json", 30.53},
      {"Qwen--Qwen3-235B-A22B_config.json", 235.09},
      {"Qwen--Qwen3-Coder-480B-A35B-Instruct_config.json", 480.15},
      {"Qwen--Qwen3-0.6B_config.json", 0.596},
      {"Llama-3.2-1B-Instruct_config.json", 1.236},
      {"Qwen2.5-0.5B-Instruct_config.json", 0.494},
      {"Qwen2-7B-Instruct_config.json", 7.616},
      {"gemma3_1b_it_config.json", 1.000},
      {"gemma3_1b_config.json", 1.000},
      {"llama2-7b.yml", 6.738},
      {"qwen3-235b-a22b.yml", 235.09},
      {"gemma3-27b.yml", 27.01}};
  size_t seen = 0, counted = 0;
  for (const char* folder : {"hf", "executorch", "executorch-params", "maxtext"}) {
    for (const auto& entry : fs::directory_iterator(*shared_dir() / "data" / "configs" / folder)) {
      const std::string name = entry.path().filename().string();
      SCOPED_TRACE(name);
      ++seen;
      if (const auto word = refused.find(name); word != refused.end()) {
        try {
          read_shape_file(entry.path());
          ADD_FAILURE() << "not refused";
        } catch (const Error& error) {
          EXPECT_NE(std::string(error.what()).find(word->second), std::string::npos) << error.what();
        }
        continue;
      }
      const ModelConfig config = read_shape_file(entry.path());
      const int64_t parameters = parameter_count(config);
      EXPECT_GT(parameters, 100'000'000);
      EXPECT_EQ(ModelConfig::from_json(config.to_json(), "again"), config);
      if (const auto known = billions.find(name); known != billions.end()) {
        ++counted;
        EXPECT_NEAR(static_cast<double>(parameters) * 1e-9, known->second, known->second * 0.0011);
      }
    }
  }
  EXPECT_EQ(seen, 16u + 11 + 7 + 22);
  EXPECT_EQ(counted, billions.size());
}

TEST(SharedConfigs, QuantisedOnesAreRefusedByMethod) {
  if (!shared_dir()) GTEST_SKIP() << "no shared data";
  const fs::path folder = *shared_dir() / "data" / "configs" / "hf-quantised";
  for (const auto& [name, word] : {std::pair{"Qwen--Qwen3-30B-A3B-FP8_config.json", "fp8"},
                                   {"Qwen--Qwen3-32B-FP8_config.json", "fp8"},
                                   {"Qwen--Qwen3-32B-FP8-Static-PerTensor_config.json", "FP8"},
                                   {"nvidia--Gemma-4-31B-IT-NVFP4_config.json", "gemma4"}}) {
    try {
      read_shape_file(folder / name);
      ADD_FAILURE() << name << " was not refused";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
  }
}

TEST(Shapes, NamedOnesAgreeWithTheirPublishedSize) {
  for (const auto& [name, billions] : {std::pair{"smollm2-135m", 0.1345},
                                       {"llama3-8b", 8.03},
                                       {"mistral-7b", 7.248},
                                       {"qwen2.5-72b", 72.71},
                                       {"qwen3-4b", 4.022},
                                       {"gemma3-270m", 0.268},
                                       {"phi3-mini-4k", 3.821},
                                       {"phi4", 14.66}})
    EXPECT_NEAR(static_cast<double>(parameter_count(find_shape(name))) * 1e-9, billions, billions * 0.0011)
        << name;
  for (const std::string& name : named_shapes()) {
    const ModelConfig config = find_shape(name);
    EXPECT_EQ(ModelConfig::from_json(config.to_json(), "again"), config) << name;
  }
  EXPECT_THROW(find_shape("no-such-shape"), Error);
}

TEST(Shapes, BadFilesAreErrors) {
  EXPECT_THROW(parse_shape("no colon here\n", true, "x.yml"), Error);
  EXPECT_THROW(parse_shape("decoder_block: \"deepseek\"\n", true, "x.yml"), Error);
  EXPECT_THROW(parse_shape("decoder_block: llama2\nbase_emb_dim: abc\n", true, "x.yml"), Error);
  EXPECT_THROW(parse_shape("", true, "x.yml"), Error);
  EXPECT_THROW(parse_shape("{\"dim\": 64}", false, "x.json"), Error);
  EXPECT_THROW(
      parse_shape("{\"dim\": -5, \"n_layers\": 2, \"n_heads\": 4, \"vocab_size\": 10}", false, "x.json"),
      Error);
  EXPECT_THROW(parse_shape("[", false, "x.json"), Error);
  // Meta's Llama 3 8B params.json: the MLP width follows from the multiplier.
  const ModelConfig meta = parse_shape(
      R"({"dim": 4096, "ffn_dim_multiplier": 1.3, "multiple_of": 1024, "n_heads": 32, "n_kv_heads": 8, "n_layers": 32,
          "norm_eps": 1e-05, "vocab_size": 128256, "rope_theta": 500000.0, "use_scaled_rope": true})",
      false, "params.json");
  EXPECT_EQ(meta.intermediate, 14336);
  EXPECT_EQ(meta.rope.scaling, RopeConfig::Scaling::Llama3);
}

}  // namespace
}  // namespace quatrain
