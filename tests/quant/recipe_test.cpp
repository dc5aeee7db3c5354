#include "quant/recipe.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace quatrain {
namespace {

// The error text of a recipe that must be refused.
std::string refusal(std::string_view toml, const std::vector<std::string>& overrides = {}) {
  try {
    parse_recipe(toml, "r.toml", overrides);
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "accepted: " << toml;
  return "";
}

void expect_names(const std::string& text, std::initializer_list<std::string> parts) {
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
}

TEST(Recipe, ReadsEveryField) {
  const Recipe recipe = parse_recipe(R"(
name = "all"
description = "d"
seed = 7
[weights]
method = "rtn"
bits = 4
group = 64
clip = "mse"
[residual]
budget = 0.1
score = "weight-max"
scope = "matrix"
block = 32
[activations]
bits = 4
group = 128
symmetric = true
layers8 = [0, 5, 2]
[kv]
bits = 8
group = 32
symmetric = true
sink_tokens = 0
[embedding]
bits = 16
[lm_head]
bits = 4
)",
                                     "r.toml");
  EXPECT_EQ(recipe.name, "all");
  EXPECT_EQ(recipe.seed, 7);
  EXPECT_EQ(recipe.weights.group, 64);
  EXPECT_EQ(recipe.weights.clip, "mse");
  EXPECT_DOUBLE_EQ(recipe.residual.budget, 0.1);
  EXPECT_EQ(recipe.residual.score, "weight-max");
  EXPECT_EQ(recipe.residual.block, 32);
  EXPECT_EQ(recipe.activations.group, 128);
  EXPECT_TRUE(recipe.activations.symmetric);
  EXPECT_EQ(recipe.layers_with_8_bits(6), (std::vector<int64_t>{0, 2, 5}));
  EXPECT_EQ(recipe.kv.bits, 8);
  EXPECT_EQ(recipe.kv.group, "32");
  EXPECT_EQ(recipe.embedding_bits, 16);
  EXPECT_EQ(recipe.lm_head_bits, 4);
}

TEST(Recipe, TomlRoundTrip) {
  for (const std::string& name : shipped_recipes()) {
    const Recipe recipe = load_recipe(name);
    EXPECT_EQ(recipe.name, name);
    EXPECT_EQ(parse_recipe(recipe.to_toml(), "written"), recipe) << recipe.to_toml();
  }
  const Recipe odd =
      parse_recipe("name = \"q\\\"uo\\nte\"", "r.toml",
                   {"residual.budget=0.1", "activations.layers8=[3,1]", "kv.group=64", "seed=9"});
  EXPECT_EQ(parse_recipe(odd.to_toml(), "written"), odd) << odd.to_toml();
}

TEST(Recipe, ShippedRecipes) {
  const std::vector<std::string> names = shipped_recipes();
  for (const char* name : {"rtn", "rtn-g64", "rtn-g128", "w4a8kv4-rtn", "w8a8"})
    EXPECT_TRUE(std::find(names.begin(), names.end(), name) != names.end()) << name;
  EXPECT_EQ(load_recipe("rtn-g64").weights.group, 64);
  EXPECT_EQ(load_recipe("w8a8").kv.bits, 16);
  EXPECT_THROW(load_recipe("no-such-recipe"), Error);
  EXPECT_THROW(load_recipe("./no-such-file.toml"), Error);
}

TEST(Recipe, Overrides) {
  const Recipe recipe = parse_recipe("name = \"a\"\n[weights]\ngroup = 128", "r.toml",
                                     {"weights.group=64", "weights.clip=mse", "kv.group=head",
                                      "activations.layers8=\"first3-last\"", "name=b=c"});
  EXPECT_EQ(recipe.weights.group, 64);
  EXPECT_EQ(recipe.weights.clip, "mse");
  EXPECT_EQ(recipe.name, "b=c");
  EXPECT_EQ(recipe.layers_with_8_bits(30), (std::vector<int64_t>{0, 1, 2, 29}));
  EXPECT_EQ(recipe.layers_with_8_bits(2), (std::vector<int64_t>{0, 1}));
}

TEST(Recipe, UnknownAndIllegalFieldsAreNamed) {
  expect_names(refusal("name='a'\n[weights]\ngruop = 64"), {"r.toml", "weights.gruop", "group", "clip"});
  expect_names(refusal("name='a'\n[wieghts]\ngroup = 64"), {"wieghts", "[weights]", "[kv]"});
  expect_names(refusal("name='a'\n[weights]\ngroup = 63"), {"weights.group = 63", "power of two"});
  expect_names(refusal("name='a'\n[weights]\ngroup = '64'"), {"weights.group"});
  expect_names(refusal("name='a'\n[weights]\ngroup = 64.0"), {"weights.group"});
  expect_names(refusal("name='a'\n[weights]\ngroup = -64"), {"weights.group"});
  expect_names(refusal("name='a'\n[weights]\nmethod = 'magic'"), {"weights.method", "\"rtn\""});
  expect_names(refusal("name='a'\n[weights]\nbits = 3"), {"weights.bits", "4, 8"});
  expect_names(refusal("name='a'\n[residual]\nbudget = 1.5"), {"residual.budget", "0 to 1"});
  expect_names(refusal("name='a'\n[residual]\nbudget = nan"), {"residual.budget"});
  expect_names(refusal("name='a'\n[activations]\nsymmetric = 1"), {"activations.symmetric", "true, false"});
  expect_names(refusal("name='a'\n[activations]\nlayers8 = [1, 1]"), {"activations.layers8"});
  expect_names(refusal("name='a'\n[activations]\nlayers8 = [-1]"), {"activations.layers8"});
  expect_names(refusal("name='a'\n[activations]\nlayers8 = '1,'"), {"activations.layers8"});
  expect_names(refusal("name='a'\n[kv]\ngroup = 'row'"), {"kv.group", "head"});
  expect_names(refusal("name='a'\n[kv]\nsink_tokens = 4"), {"kv.sink_tokens"});
  expect_names(refusal("name='a'\nweights = 4"), {"weights", "table"});
  expect_names(refusal("[weights]\nbits = 4"), {"name"});
  expect_names(refusal("name = 3"), {"name = 3"});
}

TEST(Recipe, ContradictionsAreNamed) {
  expect_names(refusal("name='a'\n[weights]\nbits = 8\n[residual]\nbudget = 0.1"),
               {"weights.bits", "residual.budget"});
  expect_names(refusal("name='a'\n[activations]\nbits = 8\nlayers8 = 'first3-last'"),
               {"activations.layers8", "activations.bits"});
  expect_names(refusal("name='a'\n[transform]\nkey = 'offset-per-head'\n[kv]\nsymmetric = true"),
               {"transform.key", "kv.symmetric"});
  const Recipe recipe = parse_recipe("name='a'\n[activations]\nlayers8 = [30]", "r.toml");
  EXPECT_THROW(recipe.layers_with_8_bits(30), Error);
}

TEST(Recipe, HostileText) {
  expect_names(refusal("name = \"a\nb\""), {"r.toml:1"});
  expect_names(refusal("name = 'a'\nname = 'b'"), {"r.toml:2"});
  refusal(std::string("name = \"\xff\xfe\""));
  refusal("name = 'a'\nx = " + std::string(100000, '['));
  refusal("name = '" + std::string(2000, 'a') + "'");
  refusal(std::string(2 << 20, '#'));
  refusal("");
  std::string deep = "a";
  for (int i = 0; i < 100000; ++i) deep += ".a";
  for (const std::string& text : {deep + " = 1", "[" + deep + "]", "x = {" + deep + " = 1}"})
    expect_names(refusal("name = 'a'\n" + text), {"r.toml", "dots"});
  refusal("name = 'a'\n[weights.bits]\nx = 1");
  for (const char* bad : {"weights.group", "=3", "weights.=3", ".group=3", "nothing.x=1",
                          "weights.group.x=64", "weights.group=1\nname='b'", "weights=3", "weights.group="})
    refusal("name = 'a'", {bad});
}

TEST(Recipe, FittingGroup) {
  EXPECT_EQ(fitting_group(576, 128), 64);
  EXPECT_EQ(fitting_group(576, 64), 64);
  EXPECT_EQ(fitting_group(1536, 128), 128);
  EXPECT_EQ(fitting_group(96, 64), 32);
  EXPECT_EQ(fitting_group(352, 128), 32);
  EXPECT_EQ(fitting_group(64, 128), 64);
  EXPECT_EQ(fitting_group(105, 128), 1);
  EXPECT_EQ(fitting_group(576, 0), 0);
}

}  // namespace
}  // namespace quatrain
