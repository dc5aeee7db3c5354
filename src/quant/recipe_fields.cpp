#include "quant/recipe_fields.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <sstream>

#include "base/error.h"

namespace quatrain {

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

std::string toml_string(const std::string& text) {
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

namespace {

constexpr int64_t kSmallestGroup = 16, kLargestGroup = 1024;
constexpr std::string_view kGroupRule = "a power of two from 16 to 1024";

bool is_group(int64_t group) {
  return group >= kSmallestGroup && group <= kLargestGroup &&
         std::has_single_bit(static_cast<uint64_t>(group));
}

// N of "rank:N" in plain digits; 0 when the text is anything else.
int64_t parse_rank(std::string_view text) {
  text.remove_prefix(std::string_view("rank:").size());
  const auto layers = parse_layers(text);
  return layers && layers->size() == 1 && std::to_string(layers->front()) == text ? layers->front() : 0;
}

// The shortest text that reads back as the same number.
std::string real_text(double value) {
  std::ostringstream out;
  out << toml::value<double>(value);
  return out.str();
}

// `member` maps a recipe to the field's place: auto(Recipe&) -> T&, called on const recipes for reading too.
template <typename Member>
RecipeField integer(std::string_view stage, std::string_view name, Member member, std::string legal,
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
RecipeField choice(std::string_view stage, std::string_view name, Member member,
                   std::vector<std::string> legal) {
  std::string list;
  for (const std::string& value : legal) list += (list.empty() ? "\"" : ", \"") + value + "\"";
  return {stage, name, list,
          [=](Recipe& recipe, const toml::node& node) {
            const auto value = node.value<std::string>();
            if (!value || std::find(legal.begin(), legal.end(), *value) == legal.end()) return false;
            member(recipe) = *value;
            return true;
          },
          [=](const Recipe& recipe) { return toml_string(member(recipe)); }};
}

template <typename Member>
RecipeField flag(std::string_view stage, std::string_view name, Member member) {
  return {stage, name, "true, false",
          [=](Recipe& recipe, const toml::node& node) {
            if (!node.is_boolean()) return false;
            member(recipe) = *node.value<bool>();
            return true;
          },
          [=](const Recipe& recipe) { return std::string(member(recipe) ? "true" : "false"); }};
}

template <typename Member>
RecipeField free_text(std::string_view stage, std::string_view name, Member member) {
  return {stage, name, "a text of at most 1000 bytes",
          [=](Recipe& recipe, const toml::node& node) {
            const auto value = node.value<std::string>();
            if (!value || value->size() > 1000) return false;
            member(recipe) = *value;
            return true;
          },
          [=](const Recipe& recipe) { return toml_string(member(recipe)); }};
}

template <typename Member>
RecipeField real(std::string_view stage, std::string_view name, Member member, std::string legal,
                 std::function<bool(double)> is_legal) {
  return {stage, name, std::move(legal),
          [=](Recipe& recipe, const toml::node& node) {
            const auto value = node.is_number() ? node.value<double>() : std::nullopt;
            if (!value || !is_legal(*value)) return false;
            member(recipe) = *value;
            return true;
          },
          [=](const Recipe& recipe) { return real_text(member(recipe)); }};
}

template <typename Member>
RecipeField share(std::string_view stage, std::string_view name, Member member) {
  return real(stage, name, member, "a share from 0 to 1",
              [](double value) { return value >= 0 && value <= 1; });
}

// A number that is 0 (none) or within [low, high].
template <typename Member>
RecipeField number(std::string_view stage, std::string_view name, Member member, double low, double high) {
  return real(stage, name, member, fmt::format("0 for none, a number from {:g} to {:g}", low, high),
              [=](double value) { return value == 0 || (value >= low && value <= high); });
}

RecipeField alpha_field() {
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
            if (recipe.transform.alpha == Recipe::kSearchAlpha) return toml_string("search");
            return real_text(recipe.transform.alpha);
          }};
}

RecipeField kv_group_field() {
  return {
      "kv", "group", fmt::format("\"head\", {}", kGroupRule),
      [](Recipe& recipe, const toml::node& node) {
        if (node.is_integer() && is_group(*node.value<int64_t>()))
          recipe.kv.group = std::to_string(*node.value<int64_t>());
        else if (node.is_string() && *node.value<std::string>() == "head")
          recipe.kv.group = "head";
        else
          return false;
        return true;
      },
      [](const Recipe& recipe) { return recipe.kv.group == "head" ? toml_string("head") : recipe.kv.group; }};
}

RecipeField layers8_field() {
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
            return parse_layers(text) ? "[" + text + "]" : toml_string(text);
          }};
}

}  // namespace

const std::vector<RecipeField>& recipe_fields() {
#define AT(place)             \
  [](auto& recipe) -> auto& { \
    return recipe.place;      \
  }
  static const auto bits_4_8_16 = [](int64_t bits) { return bits == 4 || bits == 8 || bits == 16; };
  static const auto group_or_0 = [](int64_t group) { return group == 0 || is_group(group); };
  static const std::string group_rule = fmt::format("0 for none, {}", kGroupRule);
  static const std::vector<RecipeField> all = {
      free_text("", "name", AT(name)),
      free_text("", "description", AT(description)),
      integer("", "seed", AT(seed), "an integer from 0", [](int64_t seed) { return seed >= 0; }),
      choice("transform", "residual", AT(transform.residual), {"none", "hadamard", "top1-pca-offset"}),
      integer("transform", "residual_group", AT(transform.residual_group), std::string(kGroupRule), is_group),
      choice("transform", "pca", AT(transform.pca), {"top1", "all"}),
      choice("transform", "grouping", AT(transform.grouping), {"sorted", "zigzag"}),
      choice("transform", "rotation", AT(transform.rotation), {"hadamard", "random-constant-row"}),
      choice("transform", "value", AT(transform.value),
             {"none", "hadamard-per-head", "balanced", "balanced-diagonal", "balanced-diagonal-hadamard",
              "smooth"}),
      choice("transform", "key", AT(transform.key),
             {"none", "hadamard-per-head", "offset-per-head", "balanced"}),
      choice("transform", "inputs", AT(transform.inputs),
             {"none", "balanced-block", "balanced-diagonal", "balanced-diagonal-hadamard", "smooth"}),
      choice(
          "transform", "gate_up", AT(transform.gate_up),
          {"inputs", "none", "balanced-block", "balanced-diagonal", "balanced-diagonal-hadamard", "smooth"}),
      integer("transform", "inputs_block", AT(transform.inputs_block), std::string(kGroupRule), is_group),
      choice("transform", "output", AT(transform.output), {"none", "hadamard"}),
      choice("transform", "down", AT(transform.down),
             {"none", "hadamard", "grouped-offset-hadamard", "balanced-block", "balanced-diagonal",
              "balanced-diagonal-hadamard", "smooth"}),
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
      share("refine", "norm_rate", AT(refine.norm_rate)),
      number("plan", "budget_bits", AT(plan.budget_bits), 4, 9),
      number("plan", "max_slowdown", AT(plan.max_slowdown), 1, 4),
      share("plan", "inputs8", AT(plan.inputs8)),
      flag("plan", "transforms", AT(plan.transforms)),
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
  return !name.empty() && std::any_of(recipe_fields().begin(), recipe_fields().end(),
                                      [&](const RecipeField& field) { return field.stage == name; });
}

std::string legal_names(std::string_view stage) {
  std::string list, last_stage;
  for (const RecipeField& field : recipe_fields()) {
    if (field.stage == stage) list += (list.empty() ? "" : ", ") + std::string(field.name);
    if (!stage.empty() || field.stage.empty() || field.stage == last_stage) continue;
    last_stage = field.stage;
    list += fmt::format(", [{}]", last_stage);
  }
  return list;
}

}  // namespace quatrain
