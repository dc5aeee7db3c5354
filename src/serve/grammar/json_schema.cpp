#include "serve/grammar/json_schema.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "serve/grammar/number_range.h"
#include "serve/grammar/pattern.h"
#include "serve/grammar/schema_overlap.h"

namespace quatrain {
namespace {

using Node = Grammar::Node;

constexpr int64_t kMostItems = 10'000, kMostCharacters = 10'000;

// Restrict, but are not supported.
constexpr std::string_view kUnsupported[] = {"not",
                                             "if",
                                             "then",
                                             "else",
                                             "dependentRequired",
                                             "dependentSchemas",
                                             "dependencies",
                                             "contains",
                                             "minContains",
                                             "maxContains",
                                             "patternProperties",
                                             "propertyNames",
                                             "minProperties",
                                             "maxProperties",
                                             "uniqueItems",
                                             "multipleOf",
                                             "unevaluatedItems",
                                             "unevaluatedProperties",
                                             "contentEncoding",
                                             "contentMediaType",
                                             "contentSchema",
                                             "$dynamicRef",
                                             "$recursiveRef",
                                             "additionalItems"};

// Restrict, and are supported where they stand for themselves.
constexpr std::string_view kAssertions[] = {
    "type",    "enum",        "const",    "properties", "required",         "additionalProperties",
    "items",   "prefixItems", "minItems", "maxItems",   "minLength",        "maxLength",
    "pattern", "format",      "minimum",  "maximum",    "exclusiveMinimum", "exclusiveMaximum",
    "anyOf",   "oneOf",       "allOf",    "$ref"};

const std::map<std::string, std::string, std::less<>> kFormats = {
    {"date", "^(19|20)\\d\\d-(0[1-9]|1[0-2])-(0[1-9]|1\\d|2[0-8])$"},
    {"time", "^([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,6})?(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)$"},
    {"date-time",
     "^(19|20)\\d\\d-(0[1-9]|1[0-2])-(0[1-9]|1\\d|2[0-8])T([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d"
     "(\\.\\d{1,6})?(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)$"},
    {"uuid", "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"},
    {"ipv4", "^((25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)\\.){3}(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)$"},
    {"email",
     "^[a-z0-9]{1,20}([._-][a-z0-9]{1,20}){0,3}@[a-z0-9]{1,20}(-[a-z0-9]{1,20}){0,3}(\\.[a-z]{2,10}){1,2}$"},
    {"hostname", "^[a-z0-9]{1,20}(-[a-z0-9]{1,20}){0,2}(\\.[a-z]{2,10}){1,3}$"},
    {"uri", "^https?://[a-z0-9]{1,30}(\\.[a-z0-9]{1,30}){1,4}(/[A-Za-z0-9._~-]{0,40}){0,10}$"},
};

class Compiler {
 public:
  Compiler(JsonGrammar& json, const OrderedJson& root, const std::string& where)
      : json_(json), b_(json.builder()), root_(root), where_(where) {}

  // A rule for the schema that lies at `path` below the root ("" or "/properties/name").
  Node rule(const OrderedJson& schema, const std::string& path) {
    const Node begin = b_.node();
    fill(begin, schema, path);
    return begin;
  }

 private:
  void fill(Node begin, const OrderedJson& schema, const std::string& path) {
    b_.make_final(value(begin, schema, path));
  }

  std::string place(const std::string& path) const { return where_ + (path.empty() ? "" : ": " + path); }

  void only(const OrderedJson& schema, const std::string& path,
            std::initializer_list<std::string_view> allowed) {
    for (const auto& [key, unused] : schema.items())
      require(std::ranges::find(kAssertions, key) == std::end(kAssertions) ||
                  std::ranges::find(allowed, key) != allowed.end(),
              "{}: \"{}\" beside \"{}\" is not supported", place(path), key, *allowed.begin());
  }

  Node value(Node from, const OrderedJson& schema, const std::string& path) {
    if (schema.is_boolean()) {
      require(schema.get<bool>(), "{}: nothing satisfies the schema false", place(path));
      return json_.value(from);
    }
    require(schema.is_object(), "{}: a schema must be an object, true or false", place(path));
    for (const std::string_view keyword : kUnsupported) {
      const auto found = schema.find(keyword);
      const bool harmless = keyword == "uniqueItems" && found != schema.end() && *found == false;
      require(found == schema.end() || harmless, "{}: the keyword \"{}\" is not supported", place(path),
              keyword);
    }
    if (schema.contains("$ref")) return reference(from, schema, path);
    for (const char* keyword : {"anyOf", "oneOf", "allOf"})
      if (schema.contains(keyword)) return combination(from, schema, keyword, path);
    if (schema.contains("const")) return literals(from, schema, "const", path);
    if (schema.contains("enum")) return literals(from, schema, "enum", path);
    const std::vector<std::string> types = types_of(schema, path);
    if (types.empty()) return json_.value(from);
    if (types.size() == 1) return of_type(from, types[0], schema, path);
    const Node end = b_.node();
    for (const std::string& type : types) b_.epsilon(of_type(from, type, schema, path), end);
    return end;
  }

  // "#" or "#/a/b" within the same document. Each target is one rule, so references may be recursive.
  Node reference(Node from, const OrderedJson& schema, const std::string& path) {
    only(schema, path, {"$ref"});
    const OrderedJson& text = schema["$ref"];
    require(text.is_string(), "{}: $ref is not a string", place(path));
    const auto pointer = text.get<std::string>();
    require(pointer == "#" || pointer.starts_with("#/"),
            "{}: $ref \"{}\" is not supported; only references within the schema are", place(path), pointer);
    const auto known = references_.find(pointer);
    if (known != references_.end()) return b_.call(from, known->second);
    const OrderedJson* target = nullptr;
    try {
      target = &root_.at(OrderedJson::json_pointer(pointer.substr(1)));
    } catch (const nlohmann::json::exception&) {
      fail("{}: $ref \"{}\" leads nowhere", place(path), pointer);
    }
    const Node begin = b_.node();
    references_[pointer] = begin;
    fill(begin, *target, pointer.substr(1));
    return b_.call(from, begin);
  }

  Node combination(Node from, const OrderedJson& schema, const std::string& keyword,
                   const std::string& path) {
    only(schema, path, {keyword});
    const OrderedJson& parts = schema[keyword];
    require(parts.is_array() && !parts.empty(), "{}: {} is not a list of schemas", place(path), keyword);
    require(keyword != "allOf" || parts.size() == 1,
            "{}: the keyword \"allOf\" is supported for one schema only", place(path));
    if (keyword == "oneOf")
      for (size_t i = 0; i < parts.size(); ++i)
        for (size_t j = 0; j < i; ++j)
          require(never_both(parts[j], parts[i], root_),
                  "{}: one value may match both alternatives {} and {} of oneOf; use anyOf", place(path), j,
                  i);
    const Node end = b_.node();
    for (size_t i = 0; i < parts.size(); ++i)
      b_.call(from, rule(parts[i], fmt::format("{}/{}/{}", path, keyword, i)), end);
    return end;
  }

  Node literals(Node from, const OrderedJson& schema, const std::string& keyword, const std::string& path) {
    only(schema, path, {keyword, "type"});
    const OrderedJson values = keyword == "const" ? OrderedJson::array({schema[keyword]}) : schema[keyword];
    require(values.is_array(), "{}: enum is not a list", place(path));
    const std::vector<std::string> types = types_of(schema, path);
    const Node end = b_.node();
    bool any = false;
    for (const OrderedJson& value : values) {
      if (!types.empty() &&
          std::ranges::none_of(types, [&](const std::string& type) { return is_of_type(value, type); }))
        continue;
      b_.literal(from, value.dump(), end);
      any = true;
    }
    require(any, "{}: {} has no value of the type", place(path), keyword);
    return end;
  }

  std::vector<std::string> types_of(const OrderedJson& schema, const std::string& path) const {
    std::vector<std::string> types;
    if (const auto type = schema.find("type"); type != schema.end()) {
      if (type->is_string()) types.push_back(type->get<std::string>());
      if (type->is_array())
        for (const OrderedJson& one : *type)
          if (one.is_string()) types.push_back(one.get<std::string>());
      require(!types.empty() && (type->is_string() || types.size() == type->size()),
              "{}: type is not a string or a list of strings", place(path));
      return types;
    }
    // Without a type a keyword restricts values of its own type; others are not generated.
    static const std::vector<std::pair<std::string_view, std::string_view>> kTypical = {
        {"properties", "object"}, {"required", "object"},         {"additionalProperties", "object"},
        {"items", "array"},       {"prefixItems", "array"},       {"minItems", "array"},
        {"maxItems", "array"},    {"minLength", "string"},        {"maxLength", "string"},
        {"pattern", "string"},    {"format", "string"},           {"minimum", "number"},
        {"maximum", "number"},    {"exclusiveMinimum", "number"}, {"exclusiveMaximum", "number"}};
    for (const auto& [keyword, type] : kTypical)
      if (schema.contains(keyword)) return {std::string(type)};
    return types;
  }

  Node of_type(Node from, const std::string& type, const OrderedJson& schema, const std::string& path) {
    if (type == "object") return object(from, schema, path);
    if (type == "array") return array(from, schema, path);
    if (type == "string") return string(from, schema, path);
    if (type == "integer" || type == "number") return number(from, type, schema, path);
    const Node end = b_.node();
    if (type == "null") return b_.literal(from, "null", end);
    require(type == "boolean", "{}: there is no type \"{}\"", place(path), type);
    b_.literal(from, "true", end);
    return b_.literal(from, "false", end);
  }

  struct Property {
    std::string name;
    Node value;
    bool required;
  };

  // Properties in their order; those that are not required may be left out. Others are not generated, unless
  // the schema has none of its own.
  Node object(Node from, const OrderedJson& schema, const std::string& path) {
    std::set<std::string> required;
    if (const auto names = schema.find("required"); names != schema.end()) {
      require(names->is_array(), "{}: required is not a list", place(path));
      for (const OrderedJson& name : *names) {
        require(name.is_string(), "{}: required holds something that is not a string", place(path));
        required.insert(name.get<std::string>());
      }
    }
    static const OrderedJson kAnything = true;
    const auto additional = schema.find("additionalProperties");
    const OrderedJson& others = additional == schema.end() ? kAnything : *additional;

    std::vector<Property> properties;
    if (const auto own = schema.find("properties"); own != schema.end()) {
      require(own->is_object(), "{}: properties is not an object", place(path));
      for (const auto& [name, value] : own->items())
        properties.push_back({name, rule(value, path + "/properties/" + name), required.erase(name) > 0});
    }
    for (const std::string& name : required) {
      require(others != false, "{}: the required property \"{}\" is not allowed", place(path), name);
      properties.push_back({name, rule(others, path + "/additionalProperties"), true});
    }
    if (properties.empty() && others != false)
      return json_.map(from, rule(others, path + "/additionalProperties"));
    return object_of(from, properties);
  }

  Node object_of(Node from, const std::vector<Property>& properties) {
    const Node end = b_.node();
    Node none = json_.white_space(b_.byte(from, '{', '{'));  // no property so far
    Node some = -1;                                          // at least one
    for (const Property& property : properties) {
      const Node pair = b_.node();
      const Node colon = b_.literal(json_.quoted(pair, property.name), ":");
      b_.make_final(b_.call(json_.white_space(colon), property.value));
      const Node after = b_.node();
      if (some >= 0) {
        b_.call(json_.white_space(b_.byte(some, ',', ',')), pair, after);
        if (!property.required) b_.epsilon(some, after);
      }
      if (none >= 0) b_.call(none, pair, after);
      if (property.required) none = -1;
      some = after;
    }
    if (some >= 0) b_.byte(json_.white_space(some), '}', '}', end);
    if (none >= 0) b_.byte(none, '}', '}', end);
    return end;
  }

  int64_t count(const OrderedJson& schema, const char* keyword, int64_t fallback, int64_t most,
                const std::string& path) const {
    const auto found = schema.find(keyword);
    if (found == schema.end()) return fallback;
    const double value = found->is_number() ? found->get<double>() : -1;
    require(value >= 0 && value == std::floor(value), "{}: {} is not a whole number from 0", place(path),
            keyword);
    require(value <= static_cast<double>(most), "{}: {} above {} is not supported", place(path), keyword,
            most);
    return static_cast<int64_t>(value);
  }

  Node array(Node from, const OrderedJson& schema, const std::string& path) {
    std::vector<Node> prefix;
    if (const auto items = schema.find("prefixItems"); items != schema.end()) {
      require(items->is_array(), "{}: prefixItems is not a list", place(path));
      for (size_t i = 0; i < items->size(); ++i)
        prefix.push_back(rule((*items)[i], fmt::format("{}/prefixItems/{}", path, i)));
    }
    const auto items = schema.find("items");
    require(items == schema.end() || !items->is_array(),
            "{}: a list of schemas as \"items\" is not supported; use prefixItems", place(path));
    const bool open = items == schema.end() || *items != false;
    const auto listed = std::ssize(prefix);
    const int64_t least = count(schema, "minItems", 0, kMostItems, path);
    int64_t most = count(schema, "maxItems", -1, kMostItems, path);
    if (!open) most = most < 0 ? listed : std::min(most, listed);
    require(most < 0 || least <= most, "{}: no array has {} to {} items", place(path), least, most);

    Node other = -1;  // the rule of items after the listed ones, made when the first is met
    const auto item = [&](int64_t index) {
      if (index < listed) return prefix[static_cast<size_t>(index)];
      if (other < 0) other = rule(items == schema.end() ? OrderedJson(true) : *items, path + "/items");
      return other;
    };
    const Node end = b_.node();
    Node at = json_.white_space(b_.byte(from, '[', '['));
    const int64_t unrolled = most >= 0 ? most : std::max({least, listed, int64_t{1}});
    for (int64_t i = 0; i <= unrolled; ++i) {
      if (i >= least) b_.byte(i == 0 ? at : json_.white_space(at), ']', ']', end);
      if (i < unrolled) at = b_.call(i == 0 ? at : json_.white_space(b_.byte(at, ',', ',')), item(i));
    }
    if (most < 0) b_.call(json_.white_space(b_.byte(at, ',', ',')), item(unrolled), at);
    return end;
  }

  Node string(Node from, const OrderedJson& schema, const std::string& path) {
    const int64_t least = count(schema, "minLength", 0, kMostCharacters, path);
    // Longer limits than a reply has tokens would only cost memory.
    const auto limit = schema.find("maxLength");
    const bool endless = limit == schema.end() || (limit->is_number() && *limit > kMostCharacters);
    const int64_t most = endless ? -1 : count(schema, "maxLength", -1, kMostCharacters, path);
    require(most < 0 || least <= most, "{}: no string has {} to {} characters", place(path), least, most);

    std::string expression;
    if (const auto text = schema.find("pattern"); text != schema.end()) {
      require(text->is_string(), "{}: pattern is not a string", place(path));
      expression = text->get<std::string>();
      require(!schema.contains("format"), "{}: \"format\" beside \"pattern\" is not supported", place(path));
    } else if (const auto format = schema.find("format"); format != schema.end()) {
      const auto known = kFormats.find(format->is_string() ? format->get<std::string>() : "");
      require(known != kFormats.end(), "{}: the format {} is not supported", place(path), format->dump());
      expression = known->second;
    }
    if (!expression.empty()) {
      require(least == 0 && limit == schema.end(),
              "{}: \"minLength\" and \"maxLength\" beside \"pattern\" or \"format\" are not supported",
              place(path));
      return b_.byte(pattern(json_, b_.byte(from, '"', '"'), expression, place(path)), '"', '"');
    }
    if (least == 0 && most < 0) return json_.string(from);
    const Node end = b_.node();
    Node at = b_.byte(from, '"', '"');
    for (int64_t i = 0; i <= std::max(least, most); ++i) {
      if (i >= least) b_.byte(at, '"', '"', end);
      if (i < std::max(least, most)) at = json_.string_character(at);
    }
    if (most < 0) json_.string_character(at, at);
    return end;
  }

  Node number(Node from, const std::string& type, const OrderedJson& schema, const std::string& path) {
    NumberRange range;
    const auto bound = [&](const char* keyword) -> std::optional<double> {
      const auto found = schema.find(keyword);
      if (found == schema.end()) return std::nullopt;
      require(found->is_number() && std::isfinite(found->get<double>()), "{}: {} is not a number",
              place(path), keyword);
      return found->get<double>();
    };
    range.low = bound("minimum");
    range.high = bound("maximum");
    if (const auto low = bound("exclusiveMinimum"); low && (!range.low || *low >= *range.low))
      range.low = low, range.above_low = true;
    if (const auto high = bound("exclusiveMaximum"); high && (!range.high || *high <= *range.high))
      range.high = high, range.below_high = true;
    const bool whole = type == "integer";
    if (!range.low && !range.high) return whole ? json_.integer(from) : json_.number(from);
    return whole ? integer_in(json_, from, range, place(path)) : number_in(json_, from, range, place(path));
  }

  JsonGrammar& json_;
  GrammarBuilder& b_;
  const OrderedJson& root_;
  const std::string& where_;
  std::map<std::string, Node> references_;
};

}  // namespace

Node schema_rule(JsonGrammar& json, const OrderedJson& schema, const std::string& where) {
  return Compiler(json, schema, where).rule(schema, "");
}

Grammar schema_grammar(const OrderedJson& schema, const std::string& where) {
  JsonGrammar json;
  const Node start = schema_rule(json, schema, where);
  return std::move(json.builder()).finish(start);
}

Grammar object_grammar() {
  JsonGrammar json;
  const Node start = json.builder().node();
  json.builder().make_final(json.object(start));
  return std::move(json.builder()).finish(start);
}

}  // namespace quatrain
