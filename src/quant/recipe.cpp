#include "quant/recipe.h"

#include <toml++/toml.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <functional>
#include <optional>
#include <sstream>

#include "base/error.h"

namespace quatrain {
namespace {

constexpr size_t kMaxRecipeBytes = 1 << 20;
constexpr size_t kMaxDots = 256;  // between two separators: no key, and no sentence, has so many
constexpr int64_t kSmallestGroup = 16, kLargestGroup = 1024;
constexpr std::string_view kGroupRule = "a power of two from 16 to 1024";

bool is_group(int64_t group) {
  return group >= kSmallestGroup && group <= kLargestGroup &&
         std::has_single_bit(static_cast<uint64_t>(group));
}

/// Layer numbers of "0,1,29"; nullopt when the text is anything else or a number comes twice.
std::optional<std::vector<int64_t>> parse_layers(std::string_view text) {
  std::vector<int64_t> layers;
  for (const char* at = text.data(); at != text.data() + text.size();) {
    int64_t layer = -1;
    const auto [end, error] = std::from_chars(at, text.data() + text.size(), layer);
    if (error != std::errc() || layer < 0) return std::nullopt;
    layers.push_back(layer);
    at = end;
    if (at == text.data() + text.size()) break;
    if (*at++ != ',' || at == text.data() + text.size()) return std::nullopt;
  }
  std::sort(layers.begin(), layers.end());
  if (layers.empty() || std::adjacent_find(layers.begin(), layers.end()) != layers.end()) return std::nullopt;
  return layers;
}

// N of "rank:N" in plain digits; 0 when the text is anything else.
int64_t parse_rank(std::string_view text) {
  text.remove_prefix(std::string_view("rank:").size());
  const auto layers = parse_layers(text);
  return layers && layers->size() == 1 && std::to_string(layers->front()) == text ? layers->front() : 0;
}

// One field of the file: where its value goes (false: the value is not legal), and how it is written back.
struct Field {
  std::string_view stage;  // empty at the top level
  std::string_view name;
  std::string legal;
  std::function<bool(Recipe&, const toml::node&)> set;
  std::function<std::string(const Recipe&)> text;

  std::string path() const { return stage.empty() ? std::string(name) : fmt::format("{}.{}", stage, name); }
};

// A basic string on one line; the library's own writer picks forms that do not read back as the same text.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char letter : text) {
    const auto byte = static_cast<unsigned char>(letter);
    if (letter == '"' || letter == '\\')
      out += {'\\', letter};
    else if (byte < 0x20 || byte == 0x7F)
      out += fmt::format("\\u{:04x}", byte);
    else
      out += letter;
  }
  return out + "\"";
}

// `member` maps a recipe to the field's place: auto(Recipe&) -> T&, called on const recipes for reading too.
template <typename Member>
Field integer(std::string_view stage, std::string_view name, Member member, std::string legal,
              std::function<bool(int64_t)> is_legal) {
  return {stage, name, std::move(legal),
          [=](Recipe& recipe, const toml::node& node) {
            const auto value = node.is_integer() ? node.value<int64_t>() : std::nullopt;
            if (!value || !is_legal(*value)) return false;
            using Target = std::remove_reference_t<decltype(member(recipe))>;
            member(recipe) = static_cast<Target>(*value);
            return true;
          },
          [=](const Recipe& recipe) { return std::to_string(member(recipe)); }};
}

template <typename Member>
Field choice(std::string_view stage, std::string_view name, Member member, std::vector<std::string> legal) {
  std::string list;
  for (const std::string& value : legal) list += (list.empty() ? "\"" : ", \"") + value + "\"";
  return {stage, name, list,
          [=](Recipe& recipe, const toml::node& node) {
            const auto value = node.value<std::string>();
            if (!value || std::find(legal.begin(), legal.end(), *value) == legal.end()) return false;
            member(recipe) = *value;
            return true;
          },
          [=](const Recipe& recipe) { return quoted(member(recipe)); }};
}

template <typename Member>
Field flag(std::string_view stage, std::string_view name, Member member) {
  return {stage, name, "true, false",
          [=](Recipe& recipe, const toml::node& node) {
            if (!node.is_boolean()) return false;
            member(recipe) = *node.value<bool>();
            return true;
          },
          [=](const Recipe& recipe) { return std::string(member(recipe) ? "true" : "false"); }};
}

template <typename Member>
Field free_text(std::string_view stage, std::string_view name, Member member) {
  return {stage, name, "a text of at most 1000 bytes",
          [=](Recipe& recipe, const toml::node& node) {
            const auto value = node.value<std::string>();
            if (!value || value->size() > 1000) return false;
            member(recipe) = *value;
            return true;
          },
          [=](const Recipe& recipe) { return quoted(member(recipe)); }};
}

template <typename Member>
Field share(std::string_view stage, std::string_view name, Member member) {
  return {stage, name, "a share from 0 to 1",
          [=](Recipe& recipe, const toml::node& node) {
            const auto value = node.is_number() ? node.value<double>() : std::nullopt;
            if (!value || !(*value >= 0 && *value <= 1)) return false;
            member(recipe) = *value;
            return true;
          },
          [=](const Recipe& recipe) {
            std::ostringstream out;
            out << toml::value<double>(member(recipe));
            return out.str();
          }};
}

// A number that is 0 (none) or within [low, high].
template <typename Member>
Field number(std::string_view stage, std::string_view name, Member member, double low, double high) {
  return {stage, name, fmt::format("0 for none, a number from {:g} to {:g}", low, high),
          [=](Recipe& recipe, const toml::node& node) {
            const auto value = node.is_number() ? node.value<double>() : std::nullopt;
            if (!value || !(*value == 0 || (*value >= low && *value <= high))) return false;
            member(recipe) = *value;
            return true;
          },
          [=](const Recipe& recipe) {
            std::ostringstream out;
            out << toml::value<double>(member(recipe));
            return out.str();
          }};
}

Field alpha_field() {
  return {"transform", "alpha", "a share from 0 to 1, \"search\"",
          [](Recipe& recipe, const toml::node& node) {
            if (node.is_string() && *node.value<std::string>() == "search") {
              recipe.transform.alpha = Recipe::kSearchAlpha;
              return true;
            }
            const auto value = node.is_number() ? node.value<double>() : std::nullopt;
            if (!value || !(*value >= 0 && *value <= 1)) return false;
            recipe.transform.alpha = *value;
            return true;
          },
          [](const Recipe& recipe) {
            if (recipe.transform.alpha == Recipe::kSearchAlpha) return quoted("search");
            std::ostringstream out;
            out << toml::value<double>(recipe.transform.alpha);
            return out.str();
          }};
}

Field kv_group_field() {
  return {"kv", "group", fmt::format("\"head\", {}", kGroupRule),
          [](Recipe& recipe, const toml::node& node) {
            if (node.is_integer() && is_group(*node.value<int64_t>()))
              recipe.kv.group = std::to_string(*node.value<int64_t>());
            else if (node.is_string() && *node.value<std::string>() == "head")
              recipe.kv.group = "head";
            else
              return false;
            return true;
          },
          [](const Recipe& recipe) { return recipe.kv.group == "head" ? quoted("head") : recipe.kv.group; }};
}

Field layers8_field() {
  return {"activations", "layers8",
          "\"none\", \"first3-last\", \"rule\", \"rank:N\" (N from 1), a list of layer numbers from 0",
          [](Recipe& recipe, const toml::node& node) {
            std::string text;
            if (const toml::array* list = node.as_array()) {
              for (const toml::node& layer : *list) {
                if (!layer.is_integer()) return false;
                text += (text.empty() ? "" : ",") + std::to_string(*layer.value<int64_t>());
              }
            } else if (node.is_integer()) {
              text = std::to_string(*node.value<int64_t>());
            } else if (node.is_string()) {
              text = *node.value<std::string>();
            }
            const bool ranked = text.starts_with("rank:") && parse_rank(text) > 0;
            if (text != "none" && text != "first3-last" && text != "rule" && !ranked && !parse_layers(text))
              return false;
            recipe.activations.layers8 = text;
            return true;
          },
          [](const Recipe& recipe) {
            const std::string& text = recipe.activations.layers8;
            return parse_layers(text) ? "[" + text + "]" : quoted(text);
          }};
}

const std::vector<Field>& fields() {
#define AT(place)             \
  [](auto& recipe) -> auto& { \
    return recipe.place;      \
  }
  static const auto bits_4_8_16 = [](int64_t bits) { return bits == 4 || bits == 8 || bits == 16; };
  static const auto group_or_0 = [](int64_t group) { return group == 0 || is_group(group); };
  static const std::string group_rule = fmt::format("0 for none, {}", kGroupRule);
  static const std::vector<Field> all = {
      free_text("", "name", AT(name)),
      free_text("", "description", AT(description)),
      integer("", "seed", AT(seed), "an integer from 0", [](int64_t seed) { return seed >= 0; }),
      choice("transform", "residual", AT(transform.residual), {"none", "hadamard", "top1-pca-offset"}),
      integer("transform", "residual_group", AT(transform.residual_group), std::string(kGroupRule), is_group),
      choice("transform", "pca", AT(transform.pca), {"top1", "all"}),
      choice("transform", "grouping", AT(transform.grouping), {"sorted", "zigzag"}),
      choice("transform", "rotation", AT(transform.rotation), {"hadamard", "random-constant-row"}),
      choice("transform", "value", AT(transform.value), {"none", "hadamard-per-head", "balanced", "smooth"}),
      choice("transform", "key", AT(transform.key), {"none", "hadamard-per-head", "balanced"}),
      choice("transform", "inputs", AT(transform.inputs), {"none", "balanced-block", "smooth"}),
      integer("transform", "inputs_block", AT(transform.inputs_block), std::string(kGroupRule), is_group),
      choice("transform", "output", AT(transform.output), {"none", "hadamard"}),
      choice("transform", "down", AT(transform.down),
             {"none", "hadamard", "grouped-offset-hadamard", "balanced-block", "smooth"}),
      integer("transform", "down_block", AT(transform.down_block), std::string(kGroupRule), is_group),
      alpha_field(),
      choice("weights", "method", AT(weights.method), {"rtn", "gptq", "error-aware"}),
      integer("weights", "bits", AT(weights.bits), "4, 8",
              [](int64_t bits) { return bits == 4 || bits == 8; }),
      integer("weights", "group", AT(weights.group), group_rule, group_or_0),
      choice("weights", "clip", AT(weights.clip), {"none", "mse"}),
      share("weights", "damping", AT(weights.damping)),
      share("weights", "target", AT(weights.target)),
      share("weights", "stream", AT(weights.stream)),
      share("residual", "budget", AT(residual.budget)),
      choice("residual", "score", AT(residual.score),
             {"residual-norm", "weight-max", "random", "hessian-diagonal", "delta-hessian"}),
      choice("residual", "scope", AT(residual.scope), {"matrix", "global"}),
      choice("residual", "unit", AT(residual.unit), {"block", "channel"}),
      integer("residual", "block", AT(residual.block), std::string(kGroupRule), is_group),
      flag("residual", "sort", AT(residual.sort)),
      integer("activations", "bits", AT(activations.bits), "4, 8, 16", bits_4_8_16),
      integer("activations", "group", AT(activations.group), group_rule, group_or_0),
      integer("activations", "down_group", AT(activations.down_group),
              "0 for the same as group, a power of two from 16 to 1024", group_or_0),
      flag("activations", "symmetric", AT(activations.symmetric)),
      layers8_field(),
      integer("kv", "bits", AT(kv.bits), "4, 8, 16", bits_4_8_16),
      kv_group_field(),
      flag("kv", "symmetric", AT(kv.symmetric)),
      integer("kv", "sink_tokens", AT(kv.sink_tokens), "0", [](int64_t tokens) { return tokens == 0; }),
      free_text("calibration", "text", AT(calibration.text)),
      integer("calibration", "samples", AT(calibration.samples), "1 to 65536",
              [](int64_t samples) { return samples >= 1 && samples <= 65536; }),
      integer("calibration", "length", AT(calibration.length), "16 to 1048576",
              [](int64_t length) { return length >= 16 && length <= 1048576; }),
      integer("refine", "samples", AT(refine.samples), "0 for none, up to 65536",
              [](int64_t samples) { return samples >= 0 && samples <= 65536; }),
      integer("refine", "length", AT(refine.length), "16 to 1048576",
              [](int64_t length) { return length >= 16 && length <= 1048576; }),
      share("refine", "rate", AT(refine.rate)),
      number("plan", "budget_bits", AT(plan.budget_bits), 4, 9),
      number("plan", "max_slowdown", AT(plan.max_slowdown), 1, 4),
      share("plan", "inputs8", AT(plan.inputs8)),
      integer("plan", "samples", AT(plan.samples), "1 to 65536",
              [](int64_t samples) { return samples >= 1 && samples <= 65536; }),
      integer("plan", "length", AT(plan.length), "16 to 1048576",
              [](int64_t length) { return length >= 16 && length <= 1048576; }),
      integer("embedding", "bits", AT(embedding_bits), "4, 8, 16", bits_4_8_16),
      integer("lm_head", "bits", AT(lm_head_bits), "4, 8, 16", bits_4_8_16),
  };
#undef AT
  return all;
}

bool is_stage(std::string_view name) {
  return !name.empty() && std::any_of(fields().begin(), fields().end(),
                                      [&](const Field& field) { return field.stage == name; });
}

// The names that may stand at the top level (stage empty) or inside a stage.
std::string legal_names(std::string_view stage) {
  std::string list, last_stage;
  for (const Field& field : fields()) {
    if (field.stage == stage) list += (list.empty() ? "" : ", ") + std::string(field.name);
    if (!stage.empty() || field.stage.empty() || field.stage == last_stage) continue;
    last_stage = field.stage;
    list += fmt::format(", [{}]", last_stage);
  }
  return list;
}

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
    const auto field = std::find_if(fields().begin(), fields().end(), [&](const Field& candidate) {
      return candidate.stage == stage && candidate.name == name;
    });
    if (field == fields().end())
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
      parsed = parsed_as(quoted(value));
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
  require(recipe.transform.value != "balanced" || recipe.transform.output == "none",
          "{}: transform.value = \"balanced\" chooses the basis of o_proj's input and contradicts "
          "transform.output; legal: transform.output = \"none\"",
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
          "{}: transform.alpha needs \"smooth\" in transform.inputs, transform.value or transform.down",
          where);
  const Recipe::Residual& residual = recipe.residual;
  require(residual.scope == "matrix" || (residual.score == "delta-hessian" && residual.unit == "block"),
          "{}: residual.scope = \"global\" compares blocks of different matrices and needs residual.score = "
          "\"delta-hessian\" and residual.unit = \"block\"",
          where);
  const auto in_order = [](const std::string& kind) { return kind == "none" || kind == "smooth"; };
  require(
      !residual.sort || (transform.residual == "none" && in_order(transform.inputs) &&
                         in_order(transform.value) && in_order(transform.down) && transform.output == "none"),
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
  require(plan.asked() || plan == Recipe::Plan{},
          "{}: fields of [plan] need plan.budget_bits or plan.max_slowdown", where);
  require(recipe.activations.layers8 == "none" || recipe.activations.bits == 4,
          "{}: activations.layers8 contradicts activations.bits = {}; legal: activations.bits = 4, or "
          "activations.layers8 = \"none\"",
          where, recipe.activations.bits);
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
  for (const Field& field : fields()) {
    if (weights.bits == 8 && field.path() == "residual.budget") continue;  // the two contradict each other
    if (field.stage == "plan" && !plan.asked()) continue;
    if (field.stage != stage) out += fmt::format("\n[{}]\n", field.stage);
    stage = field.stage;
    out += fmt::format("{} = {}\n", field.name, field.text(*this));
  }
  return out;
}

bool Recipe::calibrated() const {
  return follows_stream() || watches_inputs() || plan.asked() || refine.samples > 0 ||
         transform.residual == "top1-pca-offset" || transform.value == "balanced" ||
         transform.key == "balanced" || transform.inputs == "balanced-block" ||
         transform.down == "balanced-block" || transform.down == "grouped-offset-hadamard";
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

// toml++ bounds the depth of values, not that of dotted keys, which it follows by recursion.
static void check_dotted_keys(std::string_view toml, std::string_view where) {
  size_t dots = 0;
  for (const char c : toml) {
    if (std::string_view("=,{}[]#\n").find(c) != std::string_view::npos) dots = 0;
    dots += c == '.';
    require(dots <= kMaxDots, "{}: a key has more than {} dots", where, kMaxDots);
  }
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
