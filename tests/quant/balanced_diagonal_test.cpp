// The cheap members of the balanced family: a diagonal merged into what produces an input, alone and with a
// Hadamard behind it.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/rng.h"
#include "checkpoint/artifact.h"
#include "engine/engine.h"
#include "model/checkpoint.h"
#include "quant/layer_sites.h"
#include "quant/pipeline.h"
#include "quant/policy.h"
#include "quant/reference.h"
#include "quant/transformed_layer.h"
#include "quant/transforms/balance.h"
#include "support/logits.h"
#include "support/tiny_models.h"

namespace quatrain {
namespace {

using Fields = std::vector<std::string>;

std::vector<int32_t> tokens(int64_t length, uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < length; ++t) ids.push_back(static_cast<int32_t>(random.below(300)));
  return ids;
}

// What noise on both sides costs under x <- x / s.
double cost(const torch::Tensor& scale, const torch::Tensor& s, const torch::Tensor& g) {
  return ((s / scale.square()).sum() * (g * scale.square()).sum()).item<double>();
}

// Against every diagonal of a grid: three channels, of which one may stay as it is (a common factor costs
// nothing).
TEST(BalancingScale, IsTheCheapestDiagonal) {
  torch::manual_seed(1);
  for (int attempt = 0; attempt < 4; ++attempt) {
    const torch::Tensor s = torch::rand({3}, torch::kDouble).square() + 0.01,
                        g = torch::rand({3}, torch::kDouble).square() + 0.01;
    const double best = cost(balancing_scale(s, g, 0), s, g);
    // Squares of the two other scales, 301 x 301 of them.
    const torch::Tensor one = torch::exp(torch::linspace(-6, 6, 301, torch::kDouble)).unsqueeze(1),
                        two = one.t();
    const double least =
        ((s[0] + s[1] / one + s[2] / two) * (g[0] + g[1] * one + g[2] * two)).min().item<double>();
    EXPECT_GE(least, best * (1 - 1e-12));
    EXPECT_LT(least, best * 1.001);  // the grid's step of 2 % is squared in the cost
    EXPECT_LT(best, cost(torch::ones({3}, torch::kDouble), s, g));
  }
}

// It is the block transform of matrices that are diagonal, and finite where nothing comes or nothing reads.
TEST(BalancingScale, IsTheGeometricMeanOfDiagonals) {
  const torch::Tensor s = torch::linspace(1, 9, 8, torch::kDouble),
                      g = torch::linspace(5, 2, 8, torch::kDouble);
  const torch::Tensor mean = geometric_mean(torch::diag(s), torch::diag(g)).diagonal();
  EXPECT_LT((balancing_scale(s, g, 0).pow(-2) - mean).abs().max().item<double>(), 1e-10);
  const torch::Tensor none = torch::zeros({8}, torch::kDouble);
  for (const torch::Tensor& scale :
       {balancing_scale(none, g, 1e-3), balancing_scale(s, none, 1e-3), balancing_scale(none, none, 1e-3)})
    EXPECT_TRUE(torch::isfinite(scale).all().item<bool>() && (scale > 0).all().item<bool>());
}

Recipe recipe_of(const Fields& fields) {
  Fields all = {"weights.group=16", "activations.group=16"};
  all.insert(all.end(), fields.begin(), fields.end());
  return parse_recipe("name = \"test\"", "test", all);
}

const std::vector<Fields>& members() {
  static const std::vector<Fields> all = {
      {"transform.inputs=balanced-diagonal"},
      {"transform.inputs=balanced-diagonal-hadamard"},
      {"transform.inputs=balanced-diagonal", "transform.gate_up=balanced-block", "transform.inputs_block=32"},
      {"transform.gate_up=balanced-diagonal"},
      {"transform.down=balanced-diagonal"},
      {"transform.down=balanced-diagonal-hadamard", "transform.down_block=32"},
      {"transform.down=balanced-diagonal-hadamard", "activations.symmetric=true"},
      {"transform.value=balanced-diagonal"},
      {"transform.value=balanced-diagonal-hadamard"},
      {"transform.value=balanced-diagonal", "transform.output=hadamard"},
      {"transform.inputs=balanced-diagonal-hadamard", "transform.down=balanced-diagonal-hadamard",
       "transform.value=balanced-diagonal-hadamard", "transform.down_block=32", "transform.key=balanced"},
  };
  return all;
}

class BalancedDiagonal : public TinyModels {
 protected:
  // Every layer of `model` before and behind its transforms, on the stream that reaches it.
  template <typename Visit>
  void each_layer(const std::string& model, const Recipe& recipe, Visit visit) const {
    const c10::InferenceMode inference;
    const auto source = checkpoint_weight_source(open_checkpoint(models_ / model));
    const ModelConfig& config = source->config();
    const QuantizationConfig plan = plan_quantization(config, recipe).config;
    ThreadPool pool(2);
    const SampleWork work(pool, {});
    std::vector<torch::Tensor> hidden;
    for (uint64_t s = 0; s < 4; ++s)
      hidden.push_back(source->embedding().index_select(0, torch::tensor(tokens(48, s)).to(torch::kLong)) *
                       config.embedding_scale);
    for (int64_t index = 0; index < config.layers; ++index) {
      const DecoderLayer exact(*source, index);
      TransformedLayer changed =
          transform_layer(DecoderLayer(*source, index), config, recipe, plan, hidden, work, pool);
      visit(exact, changed, hidden, config);
      for (torch::Tensor& x : hidden) x = exact.forward(x);
    }
  }

  Json run(const std::string& model, const std::string& recipe, const Fields& fields) const {
    QuantizeOptions options;
    options.threads = 2;
    for (uint64_t s = 0; s < 4; ++s) options.samples.push_back(tokens(64, 20 + s));
    fs::remove_all(directory_ / "out");
    return quantize(models_ / model, load_recipe(recipe, fields), directory_ / "out", options);
  }

  std::string refusal(const std::string& model, const std::string& recipe, const Fields& fields) const {
    try {
      run(model, recipe, fields);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  }
};

// Weights are rounded to FP32 once after the merge: what a layer adds to the stream moves by that alone.
void keeps_what_it_adds(const DecoderLayer& exact, const TransformedLayer& changed,
                        const std::vector<torch::Tensor>& hidden, const ModelConfig&) {
  const torch::Tensor expected = exact.forward(hidden[0]);
  const torch::Tensor moved = changed.layer.forward(hidden[0]) - expected;
  EXPECT_LT((moved.norm() / (expected - hidden[0]).norm()).item<double>(), 2e-5);
}

TEST_F(BalancedDiagonal, KeepsWhatALayerAdds) {
  for (const char* model :
       {"llama-gqa", "llama-tied-576", "qwen2-bias", "qwen3-qknorm", "gemma3-text", "mixtral", "qwen3-moe"})
    for (const Fields& fields : members()) {
      SCOPED_TRACE(fmt::format("{}: {}", model, fmt::join(fields, " ")));
      each_layer(model, recipe_of(fields), keeps_what_it_adds);
    }
}

// Where the optimum is, each channel's input and weights hold the same energy: S / s^2 = G s^2. At o both are
// sums over the query heads of a KV head. Damping of 1e-3 of the mean aside.
TEST_F(BalancedDiagonal, EvensInputsAndWeights) {
  const Recipe recipe = recipe_of({"transform.inputs=balanced-diagonal", "transform.down=balanced-diagonal",
                                   "transform.value=balanced-diagonal"});
  for (const char* model : {"llama-gqa", "qwen2-bias", "gemma3-text"})
    each_layer(model, recipe,
               [&](const DecoderLayer&, TransformedLayer& changed, const std::vector<torch::Tensor>& hidden,
                   const ModelConfig& config) {
                 LayerInputs seen({}, 0, 0);
                 LayerHooks hooks;
                 hooks.linear_input = [&](Site site, int64_t, const torch::Tensor& x) { seen.add(site, x); };
                 for (const torch::Tensor& x : hidden) changed.layer.forward(x, hooks);
                 for (const Site site : {Site::Qkv, Site::Output, Site::GateUp, Site::Down}) {
                   SCOPED_TRACE(fmt::format("{} layer {} site {}", model, changed.layer.index(),
                                            static_cast<int>(site)));
                   const auto by_channel = [&](const torch::Tensor& x) {
                     return site == Site::Output
                                ? x.reshape({config.kv_heads, -1, config.head_dim}).sum(1).flatten()
                                : x;
                   };
                   const torch::Tensor s = by_channel(seen.mean_squares(site)),
                                       g = by_channel(weights_of(linears_at(changed.layer, site))
                                                          .square()
                                                          .sum(0, false, torch::kDouble));
                   EXPECT_LT(((s - g).norm() / g.norm()).item<double>(), 0.02);
                   EXPECT_LT(((changed.inputs.mean_squares(site) - seen.mean_squares(site)).norm() /
                              seen.mean_squares(site).norm())
                                 .item<double>(),
                             1e-4);  // the statistics followed
                 }
               });
}

// The channel of most energy of each KV head becomes one offset of the head's values.
TEST_F(BalancedDiagonal, TurnsTheLargestValueIntoAnOffset) {
  const Recipe recipe = recipe_of({"transform.value=balanced-diagonal-hadamard"});
  const Recipe diagonal = recipe_of({"transform.value=balanced-diagonal"});
  std::vector<torch::Tensor> energy;  // of the scaled channels
  const auto values = [&](const Recipe& from) {
    std::vector<torch::Tensor> all;
    energy.clear();
    each_layer("llama-gqa", from,
               [&](const DecoderLayer&, const TransformedLayer& changed, const std::vector<torch::Tensor>&,
                   const ModelConfig&) {
                 all.push_back(changed.layer.v.weight.to(torch::kDouble));
                 energy.push_back(changed.inputs.mean_squares(Site::Output).reshape({2, 4, 16}).sum(1));
               });
    return all;
  };
  const auto turned = values(recipe), scaled = values(diagonal);
  ASSERT_EQ(turned.size(), 3u);
  for (size_t layer = 0; layer < turned.size(); ++layer)
    for (int64_t head = 0; head < 2; ++head) {
      const torch::Tensor mean = turned[layer].slice(0, 16 * head, 16 * head + 16).sum(0) / 4;  // sqrt(16)
      const torch::Tensor rows = scaled[layer].slice(0, 16 * head, 16 * head + 16);
      // The sum over the head's outputs is that channel alone.
      const torch::Tensor largest = rows[energy[layer][head].argmax().item<int64_t>()];
      EXPECT_LT((largest - mean).norm().item<double>(), 1e-5 * mean.norm().item<double>());
    }
}

// FP32 sums aside where inputs stay unquantised; with 8 bits these random models amplify the codes that fall
// on the other side of a rounding.
TEST_F(BalancedDiagonal, EngineEqualsReference) {
  for (const char* model : {"llama-gqa", "qwen2-bias", "gemma3-text", "mixtral"})
    for (const char* member : {"balanced-diagonal", "balanced-diagonal-hadamard"})
      for (const auto& [bits, tolerance] : {std::pair{"16", 1e-3}, {"8", 0.1}}) {
        SCOPED_TRACE(fmt::format("{} {} {}", model, member, bits));
        const bool experts = std::string(model) == "mixtral";  // which "delta-hessian" refuses
        Fields fields = {"residual.budget=0.1", "residual.block=16",
                         experts ? "residual.score=hessian-diagonal" : "residual.score=delta-hessian",
                         std::string("activations.bits=") + bits, std::string("kv.bits=") + bits};
        for (const char* site : {"inputs", "down", "value"})
          fields.push_back(fmt::format("transform.{}={}", site, member));
        run(model, "rtn-g64", fields);
        const std::vector<int32_t> ids = tokens(48, 1);
        EngineOptions options;
        options.threads = 2;
        const auto native = all_logits(*Engine::load(directory_ / "out", options), ids, 48);
        EXPECT_LT(relative_distance(native, ReferenceModel::load(directory_ / "out")->logits(ids)),
                  tolerance);
        const ArtifactReader reader(directory_ / "out");
        EXPECT_EQ(reader.tensors().find("model.layers.0.self_attn.input_transform"), nullptr);
      }
}

// Quantised to 8 bits by nearest, a model stays what it was: the gains went into the file.
TEST_F(BalancedDiagonal, ArtifactKeepsTheModel) {
  const std::vector<int32_t> ids = tokens(40, 1);
  for (const char* model : {"llama-gqa", "qwen2-bias", "gemma3-text"}) {
    const std::vector<float> exact = ReferenceModel::load(models_ / model)->logits(ids);
    for (const char* residual : {"none", "hadamard"})
      for (const char* member : {"balanced-diagonal", "balanced-diagonal-hadamard"}) {
        if (std::string(model) == "gemma3-text" && std::string(residual) == "hadamard") continue;
        Fields fields = {"weights.bits=8",    "weights.group=16",
                         "weights.clip=none", "activations.bits=16",
                         "kv.bits=16",        "embedding.bits=16",
                         "lm_head.bits=16",   std::string("transform.residual=") + residual};
        for (const char* site : {"inputs", "down", "value"})
          fields.push_back(fmt::format("transform.{}={}", site, member));
        run(model, "rtn-g64", fields);
        EXPECT_LT(relative_distance(ReferenceModel::load(directory_ / "out")->logits(ids), exact), 0.2)
            << model << " " << residual << " " << member;
      }
  }
}

TEST_F(BalancedDiagonal, PoliciesAndRefusals) {
  const auto checkpoint = open_checkpoint(models_ / "llama-gqa");
  const auto kind = [&](const Fields& fields, const char* linear) {
    return plan_quantization(checkpoint->config(), recipe_of(fields))
        .config.linear(std::string("model.layers.1.") + linear)
        .input_transform.kind;
  };
  const Fields inputs = {"transform.inputs=balanced-diagonal-hadamard"};
  EXPECT_EQ(kind(inputs, "self_attn.v_proj"), "hadamard");
  EXPECT_EQ(kind(inputs, "mlp.up_proj"), "hadamard");
  EXPECT_EQ(kind(inputs, "mlp.down_proj"), "none");
  EXPECT_EQ(kind({"transform.inputs=balanced-diagonal"}, "self_attn.q_proj"), "none");
  EXPECT_EQ(kind({"transform.inputs=balanced-block", "transform.gate_up=none"}, "mlp.up_proj"), "none");
  EXPECT_EQ(kind({"transform.gate_up=balanced-block"}, "self_attn.q_proj"), "none");
  EXPECT_EQ(kind({"transform.gate_up=balanced-block"}, "mlp.gate_proj"), "block");
  const Fields down = {"transform.down=balanced-diagonal-hadamard"};
  EXPECT_EQ(kind(down, "mlp.down_proj"), "grouped-offset-hadamard");
  EXPECT_NE(kind({down[0], "activations.symmetric=true"}, "mlp.down_proj"), "grouped-offset-hadamard");

  const auto refused = [](const Fields& fields) {
    try {
      recipe_of(fields);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_NE(refused({"transform.value=balanced-diagonal-hadamard", "transform.output=hadamard"})
                .find("transform.output"),
            std::string::npos);
  EXPECT_NE(refused({"transform.gate_up=balanced-diagonal", "residual.sort=true"}).find("residual.sort"),
            std::string::npos);
  EXPECT_NE(refused({"transform.down=diagonal"}).find("balanced-diagonal-hadamard"), std::string::npos);
  EXPECT_NE(refused({"transform.output=balanced-diagonal"}).find("transform.output"), std::string::npos);
  EXPECT_EQ(refused({"transform.gate_up=smooth", "transform.alpha=0.7"}), "accepted");
  // The default stays out of the text, so that recipes of before read the same; what is set comes back.
  EXPECT_EQ(recipe_of({}).to_toml().find("gate_up"), std::string::npos);
  const Recipe mixed = recipe_of({"transform.gate_up=balanced-diagonal"});
  EXPECT_EQ(parse_recipe(mixed.to_toml(), "again"), mixed);
}

}  // namespace
}  // namespace quatrain
