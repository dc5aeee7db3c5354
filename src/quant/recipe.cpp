#include "quant/recipe.h"

#include <toml++/toml.h>

#include <algorithm>
#include <bit>
#include <sstream>

#include "base/error.h"
#include "quant/recipe_fields.h"

namespace quatrain {
namespace {

constexpr size_t kMaxRecipeBytes = 1 << 20;
constexpr size_t kMaxDots = 256;  // between two separators: no key, and no sentence, has so many

std::string node_text(const toml::node& node) {
  std::ostringstream out;
  node.visit([&](const auto& value) { out << value; });
  const std::string text = out.str();
  return text.size() <= 80 ? text : text.substr(0, 80) + "...";
}

void set_fields(Recipe& recipe, const toml::table& table, std::string_view stage, std::string_view where) {
  for (const auto& [key, node] : table) {
    const std::string_view name = key.str();
    if (stage.empty() && is_stage(name)) {
      require(node.is_table(), "{}: {} is a table of fields: {}", where, name, legal_names(name));
      set_fields(recipe, *node.as_table(), name, where);
      continue;
    }
    const auto field = std::find_if(
        recipe_fields().begin(), recipe_fields().end(),
        [&](const RecipeField& candidate) { return candidate.stage == stage && candidate.name == name; });
    if (field == recipe_fields().end())
      fail("{}: unknown field \"{}{}{}\"; legal here: {}", where, stage, stage.empty() ? "" : ".", name,
           legal_names(stage));
    if (!field->set(recipe, node))
      fail("{}: {} = {} is not legal; legal: {}", where, field->path(), node_text(node), field->legal);
  }
}

// A value as TOML spells it; a bare word is a string, so that --set weights.clip=mse needs no quotes.
void insert_override(toml::table& table, const std::string& override_text) {
  const size_t equals = override_text.find('=');
  require(equals != std::string::npos, "--set {}: expected stage.field=value", override_text);
  const std::string path = override_text.substr(0, equals), value = override_text.substr(equals + 1);
  const size_t dot = path.find('.');
  const std::string stage = dot == std::string::npos ? "" : path.substr(0, dot);
  const std::string name = dot == std::string::npos ? path : path.substr(dot + 1);
  require(stage.empty() || is_stage(stage), "--set {}: unknown stage \"{}\"; legal: {}", override_text, stage,
          legal_names(""));
  const auto parsed_as = [&](const std::string& text) {
    toml::table parsed = toml::parse("value = " + text);
    if (parsed.size() != 1) throw toml::parse_error("more than a value", {}, nullptr);
    return parsed;
  };
  toml::table parsed;
  try {
    parsed = parsed_as(value);
  } catch (const toml::parse_error&) {
    try {
      parsed = parsed_as(toml_string(value));
    } catch (const toml::parse_error&) {
      fail("--set: the value of {} is neither TOML nor UTF-8 text", path);
    }
  }
  toml::table* target = &table;
  if (!stage.empty()) {
    table.insert(stage, toml::table{});
    target = table[stage].as_table();
    require(target != nullptr, "--set {}: the recipe's \"{}\" is no table of fields", override_text, stage);
  }
  parsed.get("value")->visit([&](const auto& node) { target->insert_or_assign(name, node); });
}

void check_contradictions(const Recipe& recipe, const toml::table& table, std::string_view where) {
  require(!recipe.name.empty(), "{}: field \"name\" is missing", where);
  require(recipe.weights.bits == 4 || !table.at_path("residual.budget"),
          "{}: weights.bits = 8 keeps the low nibbles of every block and contradicts residual.budget; legal: "
          "weights.bits = 4, or no residual.budget",
          where);
  require(
      recipe.weights.method == "error-aware" || (recipe.weights.target == 0 && recipe.weights.stream == 0),
      "{}: weights.target and weights.stream need weights.method = \"error-aware\"", where);
  const bool turned = recipe.transform.value == "balanced" ||  //
                      recipe.transform.value == "balanced-diagonal-hadamard";
  require(!turned || recipe.transform.output == "none",
          "{}: transform.value = \"{}\" chooses the basis of o_proj's input and contradicts "
          "transform.output; legal: transform.output = \"none\"",
          where, recipe.transform.value);
  require(
      recipe.transform.key != "offset-per-head" || !recipe.kv.symmetric,
      "{}: transform.key = \"offset-per-head\" needs the zero points that kv.symmetric = true takes away; "
      "legal: kv.symmetric = false, or another transform.key",
      where);
  const Recipe::Transforms& transform = recipe.transform;
  const bool pca = transform.residual == "top1-pca-offset";
  require(pca || (transform.pca == "top1" && transform.rotation == "hadamard"),
          "{}: transform.pca and transform.rotation need transform.residual = \"top1-pca-offset\"", where);
  require(pca || transform.down == "grouped-offset-hadamard" || transform.grouping == "sorted",
          "{}: transform.grouping needs transform.residual = \"top1-pca-offset\" or transform.down = "
          "\"grouped-offset-hadamard\"",
          where);
  require(transform.value != "smooth" || transform.output == "none",
          "{}: transform.value = \"smooth\" scales o_proj's inputs and contradicts transform.output; legal: "
          "transform.output = \"none\"",
          where);
  require(transform.smooths() || !table.at_path("transform.alpha") || transform.alpha == 0.5,
          "{}: transform.alpha needs \"smooth\" in transform.inputs, transform.gate_up, transform.value or "
          "transform.down",
          where);
  const Recipe::Residual& residual = recipe.residual;
  require(residual.scope == "matrix" || (residual.score == "delta-hessian" && residual.unit == "block"),
          "{}: residual.scope = \"global\" compares blocks of different matrices and needs residual.score = "
          "\"delta-hessian\" and residual.unit = \"block\"",
          where);
  const auto in_order = [](const std::string& kind) { return kind == "none" || kind == "smooth"; };
  require(!residual.sort || (transform.residual == "none" && in_order(transform.inputs) &&
                             in_order(transform.gate_up_kind()) && in_order(transform.value) &&
                             in_order(transform.down) && transform.output == "none"),
          "{}: residual.sort orders channels that a rotation would mix; legal: transforms \"none\" or "
          "\"smooth\", or residual.sort = false",
          where);
  const Recipe::Plan& plan = recipe.plan;
  require(plan.budget_bits == 0 || plan.max_slowdown == 0,
          "{}: plan.budget_bits and plan.max_slowdown contradict each other; legal: one of them", where);
  require(!plan.asked() || recipe.weights.bits == 4,
          "{}: a [plan] buys residual blocks for 4-bit weights and contradicts weights.bits = {}", where,
          recipe.weights.bits);
  require(!plan.asked() || residual.unit == "block",
          "{}: a [plan] buys single blocks and contradicts residual.unit = \"{}\"; legal: \"block\"", where,
          residual.unit);
  require(plan.max_slowdown == 0 || recipe.activations.bits == 4,
          "{}: plan.max_slowdown chooses between 4-bit and 8-bit inputs and contradicts activations.bits = "
          "{}; legal: activations.bits = 4, or plan.budget_bits",
          where, recipe.activations.bits);
  const auto member = [](const std::string& kind) { return kind == "none" || kind.starts_with("balanced-"); };
  require(!plan.transforms || (plan.max_slowdown > 0 && member(transform.inputs) &&
                               member(transform.gate_up_kind()) && member(transform.down) && !residual.sort),
          "{}: plan.transforms chooses balanced transforms by their time; legal: with plan.max_slowdown, "
          "transform.inputs, transform.gate_up and transform.down \"none\" or balanced, residual.sort = "
          "false",
          where);
  require(plan.asked() || plan == Recipe::Plan{},
          "{}: fields of [plan] need plan.budget_bits or plan.max_slowdown", where);
  require(recipe.activations.layers8 == "none" || recipe.activations.bits == 4,
          "{}: activations.layers8 contradicts activations.bits = {}; legal: activations.bits = 4, or "
          "activations.layers8 = \"none\"",
          where, recipe.activations.bits);
}

// toml++ bounds the depth of values, not that of dotted keys, which it follows by recursion.
void check_dotted_keys(std::string_view toml, std::string_view where) {
  size_t dots = 0;
  for (const char c : toml) {
    if (std::string_view("=,{}[]#\n").find(c) != std::string_view::npos) dots = 0;
    dots += c == '.';
    require(dots <= kMaxDots, "{}: a key has more than {} dots", where, kMaxDots);
  }
}

fs::path recipe_path(const std::string& name_or_file) {
  const bool file = name_or_file.find('/') != std::string::npos || name_or_file.ends_with(".toml");
  if (file) return name_or_file;
  const std::vector<std::string> shipped = shipped_recipes();
  if (std::find(shipped.begin(), shipped.end(), name_or_file) == shipped.end())
    fail("recipe \"{}\": not one of {}; a file's name ends in .toml or holds a slash", name_or_file,
         fmt::join(shipped, ", "));
  return find_shipped("recipes") / (name_or_file + ".toml");
}

}  // namespace

std::string Recipe::to_toml() const {
  std::string out;
  std::string_view stage;
  for (const RecipeField& field : recipe_fields()) {
    if (weights.bits == 8 && field.path() == "residual.budget") continue;  // the two contradict each other
    if (field.stage == "plan" && !plan.asked()) continue;
    if (field.path() == "transform.gate_up" && transform.gate_up == "inputs") continue;
    if (field.stage != stage) out += fmt::format("\n[{}]\n", field.stage);
    stage = field.stage;
    out += fmt::format("{} = {}\n", field.name, field.text(*this));
  }
  return out;
}

bool Recipe::calibrated() const {
  return follows_stream() || watches_inputs() || plan.asked() || refine.samples > 0 ||
         transform.residual == "top1-pca-offset" || transform.value == "balanced" ||
         transform.key == "balanced" || transform.key == "offset-per-head" ||
         transform.has("balanced-block") || transform.down == "grouped-offset-hadamard";
}

std::vector<int64_t> Recipe::layers_with_8_bits(int64_t layers) const {
  if (activations.layers8 == "none") return {};
  std::vector<int64_t> chosen;
  if (activations.layers8 == "first3-last") {
    for (int64_t layer = 0; layer < layers; ++layer)
      if (layer < 3 || layer == layers - 1) chosen.push_back(layer);
    return chosen;
  }
  require(!measures_layers8(), "recipe {}: activations.layers8 = \"{}\" is chosen before a model is planned",
          name, activations.layers8);
  chosen = parse_layers(activations.layers8).value();
  require(chosen.back() < layers,
          "recipe {}: activations.layers8 names layer {}; the model has layers 0 to {}", name, chosen.back(),
          layers - 1);
  return chosen;
}

Recipe parse_recipe(std::string_view toml, std::string_view where,
                    const std::vector<std::string>& overrides) {
  require(toml.size() <= kMaxRecipeBytes, "{}: {} bytes are too many for a recipe (at most {})", where,
          toml.size(), kMaxRecipeBytes);
  check_dotted_keys(toml, where);
  toml::table table;
  try {
    table = toml::parse(toml, where);
  } catch (const toml::parse_error& error) {
    fail("{}:{}:{}: {}", where, error.source().begin.line, error.source().begin.column, error.description());
  }
  for (const std::string& override_text : overrides) insert_override(table, override_text);
  Recipe recipe;
  set_fields(recipe, table, "", where);
  check_contradictions(recipe, table, where);
  if (recipe.refine.samples == 0) recipe.refine = {};  // settings of what does not run tell no recipes apart
  return recipe;
}

Recipe load_recipe(const std::string& name_or_file, const std::vector<std::string>& overrides) {
  const fs::path path = recipe_path(name_or_file);
  return parse_recipe(read_file(path, kMaxRecipeBytes), path.string(), overrides);
}

std::vector<std::string> shipped_recipes() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(find_shipped("recipes")))
    if (entry.path().extension() == ".toml") names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

int64_t fitting_group(int64_t width, int64_t group) {
  if (group <= 0 || width % group == 0) return group;
  auto fitted = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(group)));
  while (width % fitted != 0) fitted /= 2;
  return fitted;
}

}  // namespace quatrain
