// The planner: sensitivities against the loss that they predict, the knapsack, and what a planned artifact
// holds.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/rng.h"
#include "model/inspect.h"
#include "model/shape_file.h"
#include "model/synth.h"
#include "quant/pipeline.h"
#include "quant/planner/plan.h"
#include "quant/policy.h"
#include "quant/reference/decoder_layer.h"
#include "quant/weights/rtn.h"
#include "support/tiny_models.h"

namespace quatrain {
namespace {

std::vector<std::vector<int32_t>> samples(int64_t count, int64_t length, uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<std::vector<int32_t>> all(static_cast<size_t>(count));
  for (std::vector<int32_t>& ids : all)
    for (int64_t t = 0; t < length; ++t) ids.push_back(static_cast<int32_t>(random.below(300)));
  return all;
}

TEST(Knapsack, TakesWhatGivesMostForItsCost) {
  const std::vector<PlanItem> items = {{1, 1}, {3, 2}, {5, 10}, {0, 0.1}, {-1, 0.1}, {0.1, 0}};
  EXPECT_EQ(choose_items(items, 0), (std::vector<size_t>{5}));
  EXPECT_EQ(choose_items(items, 2), (std::vector<size_t>{1, 5}));
  EXPECT_EQ(choose_items(items, 2.5), (std::vector<size_t>{1, 5}));
  EXPECT_EQ(choose_items(items, 12), (std::vector<size_t>{0, 1, 5}));  // the large one no longer fits
  EXPECT_EQ(choose_items(items, 13), (std::vector<size_t>{0, 1, 2, 5}));
}

// Of equal costs nothing better exists than the largest gains.
TEST(Knapsack, IsOptimalForEqualCosts) {
  SplitMix64 random(3);
  std::vector<PlanItem> items;
  std::vector<double> gains;
  for (int i = 0; i < 50; ++i) {
    gains.push_back(random.uniform());
    items.push_back({gains.back(), 2});
  }
  double total = 0;
  for (const size_t item : choose_items(items, 21)) total += gains[item];
  std::sort(gains.rbegin(), gains.rend());
  EXPECT_NEAR(total, std::accumulate(gains.begin(), gains.begin() + 10, 0.0), 1e-12);
}

// A step is worth nothing without the one before it.
TEST(Knapsack, ClimbsAChainStepByStep) {
  const std::vector<PlanItem> items = {{4, 2}, {3, 3, 0}, {1, 2, 1}, {2, 4}};
  EXPECT_EQ(choose_items(items, 1), (std::vector<size_t>{}));
  EXPECT_EQ(choose_items(items, 5), (std::vector<size_t>{0, 1}));
  EXPECT_EQ(choose_items(items, 7), (std::vector<size_t>{0, 1, 2}));
  // The second step no longer fits, so that the third is none.
  EXPECT_EQ(choose_items(items, 4), (std::vector<size_t>{0}));
}

TEST(TransformPrice, CountsBytesAndOperations) {
  EXPECT_EQ(transform_price({}, 576), 0);
  EXPECT_EQ(transform_price({"block", 64, 0, "t"}, 576), 16.0 * 64 * 576);
  EXPECT_EQ(transform_price({"grouped-offset-hadamard", 128, 1, ""}, 1536), 2.0 * 7 * 1536);
  EXPECT_EQ(transform_price({"hadamard", 352, 1, ""}, 352), 2.0 * (3 + 44) * 352);  // 352 = 44 * 2^3
}

constexpr double kErrorShare = 0.1;  // small enough that the loss is quadratic in it

// The 16-bit model with 4-bit inputs at one site, or with a share of the errors that 4-bit weights make
// there.
class DisturbedSource : public WeightSource {
 public:
  DisturbedSource(std::unique_ptr<WeightSource> source, std::vector<std::string> linears, bool inputs,
                  const Recipe& recipe, const QuantizationConfig& plan)
      : source_(std::move(source)),
        linears_(std::move(linears)),
        inputs_(inputs),
        recipe_(recipe),
        plan_(plan) {
    config_ = source_->config();
  }
  torch::Tensor plain(const std::string& name) const override { return source_->plain(name); }
  ReferenceLinear linear(const std::string& name) const override {
    ReferenceLinear linear = source_->linear(name);
    if (std::find(linears_.begin(), linears_.end(), name) == linears_.end()) return linear;
    const LinearPolicy& policy = plan_.linear(name);
    if (inputs_) {
      linear.activation = policy.activation;
      return linear;
    }
    ThreadPool pool(1);
    const torch::Tensor original = linear.weight.clone();
    const RowReader read = [&](int64_t begin, int64_t end) {
      const float* data = original.data_ptr<float>();
      return std::vector<float>(data + begin * original.size(1), data + end * original.size(1));
    };
    const NibblePlanes planes = quantize_rtn(name, original.size(0), original.size(1), read,
                                             weight_format(recipe_, policy, name), pool)
                                    .planes;
    linear.weight = torch::empty(original.sizes(), torch::kFloat);
    for (int64_t row = 0; row < planes.rows; ++row)
      planes.dequantize_row(row, linear.weight.data_ptr<float>() + row * planes.columns);
    linear.weight = original + kErrorShare * (linear.weight - original);
    return linear;
  }
  torch::Tensor embedding() const override { return source_->embedding(); }
  ReferenceLinear head() const override { return source_->head(); }
  KvPolicy kv(int64_t layer) const override { return source_->kv(layer); }

 private:
  std::unique_ptr<WeightSource> source_;
  std::vector<std::string> linears_;
  bool inputs_;
  const Recipe& recipe_;
  const QuantizationConfig& plan_;
};

class Planned : public TinyModels {
 protected:
  Json run(const std::string& model, const std::string& recipe, std::vector<std::string> overrides,
           const char* name = "out") {
    QuantizeOptions options;
    options.threads = 2;
    options.samples = samples(6, 48, 9);
    fs::remove_all(directory_ / name);
    overrides.insert(overrides.begin(), "refine.samples=0");
    return quantize(models_ / model, load_recipe(recipe, overrides), directory_ / name, options);
  }

  // Mean KL divergence of a model's predictions from those of another, nats a token.
  static double divergence(ReferenceModel& from, ReferenceModel& to,
                           const std::vector<std::vector<int32_t>>& texts) {
    double sum = 0;
    int64_t tokens = 0;
    for (const std::vector<int32_t>& ids : texts) {
      const auto rows = static_cast<int64_t>(ids.size());
      const auto log_shares = [&](ReferenceModel& model) {
        return torch::log_softmax(torch::tensor(model.logits(ids)).reshape({rows, -1}).to(torch::kDouble),
                                  -1);
      };
      const torch::Tensor p = log_shares(from), q = log_shares(to);
      sum += (p.exp() * (p - q)).sum().item<double>();
      tokens += rows;
    }
    return sum / static_cast<double>(tokens);
  }
};

// The estimate is the loss's second order: small errors of weights, and 4-bit inputs where they cost little,
// must cost what it says. It draws one label a token, which these 384 tokens leave good to a factor of 2 for
// one site. What a router decides otherwise is no gradient: of the mixture only experts that no router
// follows.
TEST_F(Planned, SensitivitiesPredictTheLoss) {
  const auto texts = samples(8, 48, 5);
  for (const char* model : {"llama-gqa", "qwen2-bias", "gemma3-text", "mixtral"}) {
    const Recipe recipe = load_recipe("rtn", {"weights.group=16", "activations.group=16", "residual.block=16",
                                              "activations.symmetric=false"});
    Sensitivities measured;
    QuantizationConfig plan;
    size_t first = 0, end = 0;
    {
      const c10::InferenceMode inference;
      const auto source = open_weight_source(models_ / model);
      plan = plan_quantization(source->config(), recipe).config;
      ThreadPool pool(2);
      const std::vector<PlanVariant> variants = {{recipe, plan}};
      measured = measure_sensitivities(*source, variants, texts, SampleWork(pool, {}), pool)[0];
      const int64_t experts = source->config().moe.experts;
      first = experts > 0 ? 2 : 0;  // the last layer comes first
      end = experts > 0 ? static_cast<size_t>(2 + 2 * experts) : measured.sites.size();
    }
    const size_t step = ((end - first) / 4) | 1;  // of every kind of site
    const auto exact = ReferenceModel::load(models_ / model, 1);
    double predicted_all = 0, actual_all = 0;
    for (size_t number = first; number < end; number += step) {
      const SensitiveSite& site = measured.sites[number];
      for (const bool inputs : {false, true}) {
        double predicted = site.inputs8;
        if (!inputs) {
          predicted = 0;
          for (const std::string& linear : site.linears)
            for (const double gain : measured.blocks.at(linear)) predicted += gain;
          predicted *= kErrorShare * kErrorShare;
        }
        const auto disturbed =
            make_reference(std::make_unique<DisturbedSource>(open_weight_source(models_ / model),
                                                             site.linears, inputs, recipe, plan),
                           "disturbed", 1);
        const double actual = divergence(*exact, *disturbed, texts);
        EXPECT_GT(actual, 0) << model << " " << site.linears[0];
        if (actual > 0.1) continue;  // far from the second order
        EXPECT_GT(predicted, actual / 2) << model << " " << site.linears[0] << " " << inputs;
        EXPECT_LT(predicted, 2 * actual) << model << " " << site.linears[0] << " " << inputs;
        if (inputs) continue;
        predicted_all += predicted;
        actual_all += actual;
      }
    }
    EXPECT_NEAR(predicted_all / actual_all, 1, 0.35) << model;
  }
}

TEST_F(Planned, SpendsItsBitsBetterThanTheRecipe) {
  for (const auto& [model, recipe] :
       {std::pair{"llama-gqa", "quatrain"}, {"qwen2-bias", "rtn-g64"}, {"mixtral", "quatrain"}}) {
    SCOPED_TRACE(model);
    const std::vector<std::string> small = {"residual.block=16", "weights.group=16", "residual.budget=0.1"};
    const auto with = [&](const std::string& override_text) {
      std::vector<std::string> overrides = small;
      overrides.push_back(override_text);
      return overrides;
    };
    run(model, recipe, small);
    const auto bits = [&] {  // a plan buys blocks, whatever the transforms take
      const Json effective = inspect_model(directory_ / "out").at("effective_bits");
      return effective.at("weights").get<double>() - effective.at("transforms").get<double>();
    };
    const double uniform = bits();
    const Json report = run(model, recipe, with(fmt::format("plan.budget_bits={:.6f}", uniform)));
    const Json& bought = report["plan"]["bought"];
    EXPECT_NEAR(bought["bits_per_weight"].get<double>(), bits(), 1e-9);  // the file holds what was planned
    EXPECT_LE(bits(), uniform + 1e-6);
    EXPECT_GT(bits(), uniform - 0.05);
    EXPECT_GT(bought["gain_of_blocks"].get<double>(),
              report["plan"]["recipe_without_plan"]["gain_of_blocks"].get<double>());
    EXPECT_EQ(load_recipe((directory_ / "out" / "recipe.toml").string()).plan.budget_bits > 4, true);
  }
}

TEST_F(Planned, BuysInputsSiteBySite) {
  const Json report = run("llama-gqa", "quatrain", {"plan.max_slowdown=1.4", "residual.block=16"});
  const Json& bought = report["plan"]["bought"];
  EXPECT_LE(bought["slowdown"].get<double>(), 1.4 + 1e-9);
  EXPECT_GT(bought["slowdown"].get<double>(), 1.3);
  const ArtifactReader reader(directory_ / "out");
  std::set<std::string> wide;
  for (const Json& linear : report["plan"]["linears"]) {
    const auto name = linear["name"].get<std::string>();
    EXPECT_EQ(reader.quantization().linear(name).activation.bits, linear["inputs"].get<int>()) << name;
    if (linear["inputs"] == 8) wide.insert(name);
  }
  EXPECT_EQ(wide.size(), bought["linears_with_8_bit_inputs"].get<size_t>());
  EXPECT_GT(wide.size(), 0u);
  EXPECT_LT(wide.size(), 21u);
  for (const std::string& name : wide)  // q, k and v share their input
    EXPECT_TRUE(!name.ends_with("q_proj") || wide.contains(name.substr(0, name.size() - 6) + "k_proj"))
        << name;
  // No cost: every site.
  const Json all = run("llama-gqa", "quatrain", {"plan.max_slowdown=1.001", "plan.inputs8=0"});
  EXPECT_EQ(all["plan"]["bought"]["linears_with_8_bit_inputs"], 21);
}

// With nothing to spend every site takes the better of what is free, with enough the best of all; what is
// chosen is what the artifact holds.
TEST_F(Planned, ChoosesTheTransformOfEverySite) {
  const auto chosen = [&](const char* limit, const char* model) {
    Json report = run(model, "quatrain",
                      {std::string("plan.max_slowdown=") + limit, "plan.transforms=true", "residual.block=16",
                       "transform.inputs_block=32", "transform.down_block=32"});
    const ArtifactReader reader(directory_ / "out");
    const std::map<std::string, std::string> linear = {
        {"qkv", "self_attn.k_proj"}, {"gate_up", "mlp.up_proj"}, {"down", "mlp.down_proj"}};
    double lost = 0;
    for (const Json& site : report["plan"]["sites"]) {
      const auto kind = site["transform"].get<std::string>();
      const std::string name = fmt::format("model.layers.{}.{}", site["layer"].get<int>(),
                                           linear.at(site["site"].get<std::string>()));
      const std::string online = reader.quantization().linear(name).input_transform.kind;
      if (kind == "balanced-diagonal-hadamard") {
        EXPECT_TRUE(online.ends_with("hadamard")) << name << online;
      } else {
        EXPECT_EQ(online, kind == "balanced-block" ? "block" : "none") << name;
      }
      lost += site["members"]["none"]["loss"].get<double>() - site["members"][kind]["loss"].get<double>();
      for (const auto& [member, of] : site["members"].items())
        EXPECT_GT(of["loss"].get<double>(), of["loss_with_8_bit_inputs"].get<double>()) << name << member;
    }
    const Json& bought = report["plan"]["bought"];
    EXPECT_NEAR(lost, bought["gain_of_transforms"].get<double>(), 1e-9 * std::abs(lost) + 1e-12);
    EXPECT_LE(bought["slowdown"].get<double>(), std::stod(limit) + 1e-9);
    return report["plan"];
  };
  for (const char* model : {"llama-gqa", "qwen2-bias"}) {
    const Json none = chosen("1", model);
    EXPECT_EQ(none["bought"]["slowdown_of_transforms"], 0);
    EXPECT_EQ(none["bought"]["residual_blocks"], 0);
    const Json all = chosen("4", model);
    for (size_t i = 0; i < all["sites"].size(); ++i) {
      const Json& members = all["sites"][i]["members"];
      const auto loss = [&](const char* kind) {
        return members[kind]["loss_with_8_bit_inputs"].get<double>();
      };
      const double least = std::min({loss("none"), loss("balanced-diagonal"),
                                     loss("balanced-diagonal-hadamard"), loss("balanced-block")});
      EXPECT_EQ(loss(all["sites"][i]["transform"].get<std::string>().c_str()), least) << i;
      EXPECT_EQ(members["balanced-diagonal"]["slowdown"], 0);
      EXPECT_GT(members["balanced-block"]["slowdown"].get<double>(), 0);
      const auto free = [&](const char* kind) {
        return none["sites"][i]["members"][kind]["loss"].get<double>();
      };
      EXPECT_EQ(none["sites"][i]["transform"],
                free("balanced-diagonal") < free("none") ? "balanced-diagonal" : "none");
    }
    EXPECT_GT(all["bought"]["gain_of_transforms"].get<double>(),
              none["bought"]["gain_of_transforms"].get<double>());
  }
}

// 72 inner channels: no block of 16 columns divides them.
TEST_F(Planned, LeavesOutBlocksThatDoNotDivideAWidth) {
  const ModelConfig shape = parse_shape(
      R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":64,"intermediate_size":72,
          "num_hidden_layers":2,"num_attention_heads":2,"num_key_value_heads":1,"vocab_size":300})",
      false, "shape");
  QuantizeOptions options;
  options.threads = 2;
  options.samples = samples(4, 48, 70);
  const Recipe recipe =
      load_recipe("quatrain", {"plan.max_slowdown=3", "plan.transforms=true", "refine.samples=0"});
  const Json report =
      quantize(synthetic_checkpoint(shape, {.dtype = "float32"}), recipe, directory_ / "out", options);
  const Json& plan = report["plan"];
  ASSERT_EQ(plan["left_out"].size(), 1u) << plan["left_out"].dump();
  EXPECT_EQ(plan["left_out"][0]["site"], "down");
  EXPECT_EQ(plan["left_out"][0]["member"], "balanced-block");
  EXPECT_NE(plan["left_out"][0]["reason"].get<std::string>().find("72"), std::string::npos);
  for (const Json& site : plan["sites"])
    EXPECT_EQ(site["members"].contains("balanced-block"), site["site"] != "down") << site.dump();
}

TEST_F(Planned, SameFilesFromAnyNumberOfThreads) {
  const auto bytes = [&](const fs::path& path) {
    std::string all;
    for (const char* file : {"model.safetensors", "model-00001-of-00001.safetensors", "config.json",
                             "quantization_report.json", "recipe.toml"})
      if (fs::exists(path / file)) all += read_file(path / file);
    return all;
  };
  QuantizeOptions options;
  options.samples = samples(4, 40, 2);
  const Recipe recipe =
      load_recipe("quatrain", {"refine.samples=0", "plan.max_slowdown=1.3", "residual.block=16"});
  std::vector<std::string> files;
  for (const int threads : {1, 3}) {
    options.threads = threads;
    const fs::path out = directory_ / fmt::format("out{}", threads);
    quantize(models_ / "llama-gqa", recipe, out, options);
    files.push_back(bytes(out));
  }
  EXPECT_GT(files[0].size(), 1000u);
  EXPECT_EQ(files[0], files[1]);
}

TEST_F(Planned, RefusesByName) {
  const auto text = [](const std::string& recipe, const std::vector<std::string>& overrides) {
    try {
      load_recipe(recipe, overrides);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  for (const char* value : {"plan.budget_bits=3", "plan.budget_bits=-1", "plan.budget_bits=nan",
                            "plan.budget_bits=many", "plan.max_slowdown=0.9", "plan.max_slowdown=5",
                            "plan.samples=0", "plan.length=8", "plan.inputs8=1.5"})
    EXPECT_NE(text("quatrain", {value}).find(std::string(value).substr(0, std::string(value).find('='))),
              std::string::npos)
        << value << ": " << text("quatrain", {value});
  EXPECT_NE(text("quatrain", {"plan.budget_bits=5", "plan.max_slowdown=1.1"}).find("one of them"),
            std::string::npos);
  EXPECT_NE(text("quatrain", {"plan.samples=4"}).find("plan.budget_bits"), std::string::npos);
  EXPECT_NE(text("w8a8", {"plan.budget_bits=5"}).find("weights.bits = 8"), std::string::npos);
  EXPECT_NE(text("quatrain-a8", {"plan.max_slowdown=1.2"}).find("activations.bits"), std::string::npos);
  EXPECT_NE(text("mosaicquant-channel", {"plan.budget_bits=5"}).find("residual.unit"), std::string::npos);
  EXPECT_EQ(text("quatrain-a8", {"plan.budget_bits=5"}), "accepted");
  for (const std::vector<std::string>& fields :
       {std::vector<std::string>{"plan.budget_bits=5", "plan.transforms=true"},
        {"plan.max_slowdown=1.2", "plan.transforms=true", "transform.down=hadamard"},
        {"plan.max_slowdown=1.2", "plan.transforms=true", "transform.inputs=smooth"}})
    EXPECT_NE(text("quatrain", fields).find("plan.transforms"), std::string::npos) << fields.back();
  EXPECT_EQ(text("quatrain", {"plan.max_slowdown=1.2", "plan.transforms=true"}), "accepted");
  try {
    run("mixtral", "quatrain", {"plan.max_slowdown=1.2", "plan.transforms=true"});
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("mixture of experts"), std::string::npos) << error.what();
  }
  try {
    run("llama-gqa", "rtn-g64", {"weights.group=16", "plan.budget_bits=4.5"});
    ADD_FAILURE();
  } catch (const Error& error) {  // a scale of 16 bits for 16 weights
    EXPECT_NE(std::string(error.what()).find("take 5.0"), std::string::npos) << error.what();
  }
  EXPECT_FALSE(fs::exists(directory_ / "out"));
}

}  // namespace
}  // namespace quatrain
