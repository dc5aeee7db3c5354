#include "serve/grammar/schema_overlap.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

namespace quatrain {
namespace {

constexpr std::string_view kTypes[] = {"null", "boolean", "integer", "number", "string", "array", "object"};

const OrderedJson& resolve(const OrderedJson& schema, const OrderedJson& root) {
  const OrderedJson* at = &schema;
  for (int steps = 0; steps < 100 && at->is_object() && at->contains("$ref") && (*at)["$ref"].is_string();
       ++steps) {
    const auto pointer = (*at)["$ref"].get<std::string>();
    try {
      if (!pointer.starts_with("#")) break;
      at = &root.at(OrderedJson::json_pointer(pointer.substr(1)));
    } catch (const nlohmann::json::exception&) {
      break;
    }
  }
  return *at;
}

// The constants that it allows; null where it names none.
const OrderedJson* constants(const OrderedJson& schema, OrderedJson& storage) {
  if (!schema.is_object()) return nullptr;
  if (schema.contains("const")) {
    storage = OrderedJson::array({schema["const"]});
    return &storage;
  }
  return schema.contains("enum") && schema["enum"].is_array() ? &schema["enum"] : nullptr;
}

std::set<std::string_view> types(const OrderedJson& schema) {
  OrderedJson storage;
  std::set<std::string_view> result;
  const auto add = [&](auto&& matches) {
    for (const std::string_view type : kTypes)
      if (matches(type)) result.insert(type == "integer" ? "number" : type);
  };
  if (const OrderedJson* values = constants(schema, storage)) {
    for (const OrderedJson& value : *values)
      add([&](std::string_view type) { return is_of_type(value, type); });
  } else if (schema.is_object() && schema.contains("type")) {
    const OrderedJson& type = schema["type"];
    add([&](std::string_view name) {
      return type.is_array() ? std::ranges::find(type, OrderedJson(name)) != type.end() : type == name;
    });
  } else {
    add([](std::string_view) { return true; });
  }
  return result;
}

bool requires_property(const OrderedJson& schema, const std::string& name) {
  const auto names = schema.find("required");
  return names != schema.end() && names->is_array() &&
         std::ranges::find(*names, OrderedJson(name)) != names->end();
}

}  // namespace

bool is_of_type(const OrderedJson& value, std::string_view type) {
  if (type == "null") return value.is_null();
  if (type == "boolean") return value.is_boolean();
  if (type == "string") return value.is_string();
  if (type == "array") return value.is_array();
  if (type == "object") return value.is_object();
  if (type == "number") return value.is_number();
  if (type != "integer" || !value.is_number()) return false;
  return !value.is_number_float() || value.get<double>() == std::floor(value.get<double>());
}

bool never_both(const OrderedJson& first, const OrderedJson& second, const OrderedJson& root) {
  const OrderedJson& a = resolve(first, root);
  const OrderedJson& b = resolve(second, root);
  const auto of_a = types(a), of_b = types(b);
  std::vector<std::string_view> both;
  std::ranges::set_intersection(of_a, of_b, std::back_inserter(both));
  if (both.empty()) return true;

  OrderedJson kept_a, kept_b;
  const OrderedJson *values_a = constants(a, kept_a), *values_b = constants(b, kept_b);
  if (values_a != nullptr && values_b != nullptr)
    return std::ranges::none_of(*values_a, [&](const OrderedJson& value) {
      return std::ranges::find(*values_b, value) != values_b->end();
    });

  if (both != std::vector<std::string_view>{"object"} || !a.contains("properties") ||
      !b.contains("properties"))
    return false;
  const OrderedJson &properties_a = a["properties"], &properties_b = b["properties"];
  if (!properties_a.is_object() || !properties_b.is_object()) return false;
  for (const auto& [name, schema] : properties_a.items()) {
    const auto other = properties_b.find(name);
    if (other == properties_b.end() || !requires_property(a, name) || !requires_property(b, name)) continue;
    const OrderedJson &one = resolve(schema, root), &two = resolve(*other, root);
    OrderedJson storage_one, storage_two;
    const bool constant = constants(one, storage_one) != nullptr && constants(two, storage_two) != nullptr;
    std::vector<std::string_view> shared;
    const auto types_one = types(one), types_two = types(two);
    std::ranges::set_intersection(types_one, types_two, std::back_inserter(shared));
    if (shared.empty() || (constant && never_both(one, two, root))) return true;
  }
  return false;
}

}  // namespace quatrain
