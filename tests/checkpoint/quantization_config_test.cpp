// What an artifact's config.json says of its quantisation.
#include <gtest/gtest.h>

#include "checkpoint/artifact.h"
#include "checkpoint/example_config.h"
#include "checkpoint/files.h"

namespace quatrain {
namespace {

TEST(QuantizationConfig, WritesTheDocumentedJson) {
  QuantizationConfig config = example_config();
  config.bits_per_weight = 4.5;
  const Json expected = Json::parse(R"({"quant_method": "quatrain", "version": 1, "recipe": "quatrain",
    "bits_per_weight": 4.5,
    "defaults": {"weight_group": 64, "residual_block": 64,
                 "activation": {"bits": 4, "group": 64, "symmetric": false}},
    "linears": {"model.layers.0.mlp.down_proj": {"activation": {"bits": 8, "group": 128, "symmetric": false},
                "input_transform": {"kind": "grouped-offset-hadamard", "order": 128, "seed": 3}}},
    "kv": {"bits": 4, "group": 64, "key_transform": {"kind": "hadamard", "order": 64, "seed": 5},
           "sink_tokens": 0, "layers": {}},
    "embedding": {"bits": 8}, "lm_head": {"bits": 8, "tied": false}, "unquantized": ["model.norm"]})");
  EXPECT_EQ(config.to_json(), expected);
  const QuantizationConfig back = QuantizationConfig::from_json(expected, "F");
  EXPECT_EQ(back.to_json(), expected);
  EXPECT_EQ(back.linear("model.layers.0.mlp.down_proj").weight_group, 64);
  EXPECT_EQ(back.linear("model.layers.0.mlp.down_proj").activation.bits, 8);
  EXPECT_EQ(back.linear("other").activation.group, 64);
}

TEST(QuantizationConfig, KeepsLayersTensorsAndOverrides) {
  QuantizationConfig config = example_config();
  config.kv_layers[3] = config.kv;
  config.kv_layers[3].bits = 16;
  config.kv_layers[3].value_transform = {"matrix", 0, 0, "model.layers.3.value_transform"};
  config.defaults.input_transform = {"hadamard", 64, 18446744073709551615ull, ""};
  config.linears["plain"] = config.defaults;
  config.linears["plain"].input_transform = {};
  const QuantizationConfig back = QuantizationConfig::from_json(config.to_json(), "F");
  EXPECT_EQ(back.kv_of(3).bits, 16);
  EXPECT_EQ(back.kv_of(3).group, 64);
  EXPECT_EQ(back.kv_of(3).value_transform.tensor, "model.layers.3.value_transform");
  EXPECT_EQ(back.kv_of(2).bits, 4);
  EXPECT_EQ(back.defaults.input_transform.seed, 18446744073709551615ull);
  EXPECT_EQ(back.linear("plain").input_transform.kind, "none");
  EXPECT_EQ(back.transform_tensors(), std::set<std::string>{"model.layers.3.value_transform"});
}

TEST(QuantizationConfig, NamesTheFieldThatIsWrong) {
  const auto refused = [](const char* pointer, const Json& value,
                          std::initializer_list<std::string_view> parts) {
    Json json = example_config().to_json();
    json[Json::json_pointer(pointer)] = value;
    expect_error([&] { QuantizationConfig::from_json(json, "FILE"); }, parts);
  };
  refused("/quant_method", "gptq", {"FILE", "quant_method"});
  refused("/version", 2, {"version: 2", "another release"});
  refused("/versions", 1, {"unknown field \"versions\""});
  refused("/defaults", nullptr, {"defaults: must be an object"});
  refused("/defaults/weight_group", -1, {"defaults.weight_group: -1"});
  refused("/defaults/weight_group", 4.5, {"defaults.weight_group", "whole number"});
  refused("/defaults/weight_group", true, {"defaults.weight_group", "whole number"});
  refused("/defaults/weight_group", 18446744073709551615ull, {"defaults.weight_group"});
  for (const int columns : {8, 48, 2048})
    for (const char* field : {"weight_group", "residual_block"})
      refused((std::string("/defaults/") + field).c_str(), columns,
              {fmt::format("defaults.{}: {} columns", field, columns), "powers of two from 16 to 1024"});
  refused("/defaults/activation/group", 8, {"activation.group: 8 columns", "0 (the whole row)"});
  refused("/linears/a.b", {{"weight_group", 8}}, {"linears.a.b.weight_group: 8 columns"});
  refused("/defaults/residual_block", 0, {"residual_block: 0 columns"});
  refused("/defaults/activation/bits", 5, {"defaults.activation.bits: 5"});
  refused("/defaults/activation/group", "64", {"activation.group", "whole number"});
  refused("/defaults/activation/symmetric", 1, {"activation.symmetric", "true or false"});
  refused("/linears", Json::array(), {"linears: must be an object"});
  refused("/linears/a.b", 3, {"linears.a.b: must be an object"});
  refused("/linears/a.b", {{"activation", {{"bit", 4}}}}, {"linears.a.b.activation", "\"bit\""});
  refused("/linears/a.b", {{"input_transform", {{"order", 4}}}}, {"linears.a.b.input_transform.kind"});
  refused("/linears/a.b", {{"input_transform", {{"kind", "h"}, {"seed", -1}}}}, {"input_transform.seed"});
  refused("/kv/bits", 3, {"kv.bits: 3"});
  refused("/kv/layers/x", Json::object(), {"kv.layers: \"x\" is no layer number"});
  refused("/kv/layers/-1", Json::object(), {"kv.layers"});
  refused("/kv/layers/1", {{"layers", Json::object()}}, {"kv.layers.1", "\"layers\""});
  refused("/embedding/bits", "8", {"embedding.bits"});
  refused("/lm_head/tied", 0, {"lm_head.tied"});
  refused("/unquantized", "model.norm", {"unquantized: must be a list"});
  refused("/unquantized", {1}, {"unquantized: 1"});
  refused("/bits_per_weight", "4", {"bits_per_weight"});
  for (const char* field : {"version", "defaults", "kv"}) {
    Json json = example_config().to_json();
    json.erase(field);
    expect_error([&] { QuantizationConfig::from_json(json, "FILE"); }, {field, "missing"});
  }
  for (const char* field : {"/defaults/weight_group", "/defaults/residual_block", "/defaults/activation",
                            "/defaults/activation/bits", "/defaults/activation/group",
                            "/defaults/activation/symmetric", "/kv/bits", "/kv/group"}) {
    const Json::json_pointer place(field);
    Json json = example_config().to_json();
    json.at(place.parent_pointer()).erase(place.back());
    expect_error([&] { QuantizationConfig::from_json(json, "FILE"); }, {place.back(), "missing"});
  }
  expect_error([] { QuantizationConfig::from_json(Json(), "FILE"); }, {"quant_method"});
}

}  // namespace
}  // namespace quatrain
