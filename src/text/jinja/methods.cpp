#include "text/jinja/methods.h"

#include <algorithm>
#include <array>
#include <span>

namespace quatrain::jinja {
namespace {

class BoundMethod : public Object {
 public:
  BoundMethod(Value self, Method method) : self_(std::move(self)), method_(method) {}
  std::string_view type_name() const override { return "builtin_function_or_method"; }
  int depth() const override { return 1 + depth_of(self_); }
  bool callable() const override { return true; }
  Value call(const Arguments& arguments, Budget& budget) override {
    return method_(self_, arguments, budget);
  }

 private:
  Value self_;
  Method method_;
};

// Attributes of Python's types that have no method here.
constexpr std::string_view kText[] = {"encode",    "expandtabs",  "format_map", "isdecimal", "isidentifier",
                                      "isnumeric", "isprintable", "istitle",    "maketrans", "translate"};
constexpr std::string_view kNumber[] = {
    "as_integer_ratio", "bit_count", "bit_length", "conjugate", "denominator",
    "from_bytes",       "imag",      "numerator",  "real",      "to_bytes"};
constexpr std::string_view kFloat[] = {"as_integer_ratio", "conjugate", "fromhex", "hex", "imag",
                                       "is_integer",       "real"};
constexpr std::string_view kDict[] = {"fromkeys"};
// Those that change the object in place.
constexpr std::string_view kListChanges[] = {"append", "clear",  "extend",  "insert",
                                             "pop",    "remove", "reverse", "sort"};
constexpr std::string_view kDictChanges[] = {"clear", "pop", "popitem", "setdefault", "update"};

bool among(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

std::optional<Value> bound_method(const Value& self, std::string_view name) {
  const Sequence* sequence = self.sequence();
  const bool list = sequence != nullptr && sequence->kind == Sequence::Kind::List;
  const Method method = self.text() != nullptr ? find_text_method(name) : find_container_method(self, name);
  if (method != nullptr) {
    require(depth_of(self) < kMaxValueDepth, "a value is nested deeper than {} levels", kMaxValueDepth);
    return Value(ObjectPtr(std::make_shared<BoundMethod>(self, method)));
  }
  if ((list && among(kListChanges, name)) || (self.dict() != nullptr && among(kDictChanges, name)))
    return undefined_because(fmt::format(
        "access to attribute '{}' of '{}' object is unsafe: templates may not change values in place", name,
        type_name(self)));
  if ((self.text() != nullptr && among(kText, name)) || (self.dict() != nullptr && among(kDict, name)) ||
      (as_integer(self) && among(kNumber, name)) || (self.is<double>() && among(kFloat, name)))
    return undefined_because(fmt::format("attribute '{}' of '{}' is not supported", name, type_name(self)));
  return std::nullopt;
}

}  // namespace quatrain::jinja
