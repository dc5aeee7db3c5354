#include "text/jinja/globals.h"

#include <algorithm>
#include <utility>

namespace quatrain::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;  // jinja2's sandbox has this limit

ObjectPtr function(Function::Body body) {
  return std::make_shared<Function>(std::move(body));
}

Value range(const Arguments& arguments, Budget& budget) {
  const auto [first, second, third] = bind("range", arguments, "start", "stop", "step");
  const auto part = [](const std::optional<Value>& value, int64_t fallback) {
    return value ? integer_argument("range", "bound", *value) : fallback;
  };
  required("range", "stop", first);
  const int64_t start = second ? part(first, 0) : 0, stop = part(second ? second : first, 0),
                step = part(third, 1);
  require(step != 0, "range() arg 3 must not be zero");
  const auto distance = step > 0 ? static_cast<__int128>(stop) - start : static_cast<__int128>(start) - stop;
  const auto stride = step > 0 ? static_cast<__int128>(step) : -static_cast<__int128>(step);
  const auto count = distance <= 0 ? 0 : (distance + stride - 1) / stride;
  require(count <= kMaxRange, "Range too big. The sandbox blocks ranges larger than {}.", kMaxRange);
  budget.items(static_cast<uint64_t>(count));
  std::vector<Value> items;
  for (int64_t i = 0; i < static_cast<int64_t>(count); ++i) items.emplace_back(start + i * step);
  return make_sequence(std::move(items), budget, Sequence::Kind::Range);
}

// Calls visit(key, value) for a mapping or a list of pairs, then for the named arguments.
void each_entry(std::string_view what, const Arguments& arguments, Budget& budget,
                const std::function<void(const Value&, const Value&)>& visit) {
  require(arguments.positional.size() <= 1, "{}() takes at most one positional argument", what);
  if (!arguments.positional.empty()) {
    const Value& source = arguments.positional[0];
    require_defined(source);
    if (const Dict* other = source.dict()) {
      for (const auto& [key, value] : other->entries()) visit(key, value);
    } else {
      for (const Value& pair : items_of(source, budget)) {
        const auto parts = items_of(pair, budget);
        require(parts.size() == 2, "{}(): pairs of key and value are needed", what);
        visit(parts[0], parts[1]);
      }
    }
  }
  for (const auto& [name, value] : arguments.named) visit(Value(name), value);
}

Value dict(const Arguments& arguments, Budget& budget) {
  auto result = std::make_shared<Dict>();
  each_entry("dict", arguments, budget,
             [&](const Value& key, const Value& value) { result->set(key, value, budget); });
  return Value(std::move(result));
}

int deepest(const std::vector<Value>& items) {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, depth_of(item));
  return depth;
}

class Cycler : public Object {
 public:
  explicit Cycler(std::vector<Value> items) : items_(std::move(items)), depth_(deepest(items_) + 1) {}
  std::string_view type_name() const override { return "Cycler"; }
  int depth() const override { return depth_; }
  std::optional<Value> attribute(std::string_view name) override {
    if (name == "current") return items_[*position_];
    const bool next = name == "next";
    if (!next && name != "reset") return std::nullopt;
    return Value(function([items = items_, position = position_, next](const Arguments& arguments, Budget&) {
      expect_no_arguments("cycler method", arguments);
      const Value current = items[*position];
      *position = next ? (*position + 1) % items.size() : 0;
      return next ? current : Value();
    }));
  }

 private:
  std::vector<Value> items_;
  int depth_;
  std::shared_ptr<size_t> position_ = std::make_shared<size_t>(0);
};

Value cycler(const Arguments& arguments, Budget& budget) {
  require(!arguments.positional.empty() && arguments.named.empty(), "cycler() needs at least one item");
  budget.items(arguments.positional.size());
  auto result = std::make_shared<Cycler>(arguments.positional);
  require(result->depth() <= kMaxValueDepth, "a value is nested deeper than {} levels", kMaxValueDepth);
  return Value(ObjectPtr(std::move(result)));
}

// joiner(", "): nothing at the first call, the separator at later ones.
Value joiner(const Arguments& arguments, Budget& budget) {
  const auto [separator] = bind("joiner", arguments, "sep");
  const Value text = separator.value_or(make_text(", ", budget));
  require(depth_of(text) == 0, "joiner(): the separator must be a string");
  return Value(
      function([text, used = std::make_shared<bool>(false)](const Arguments& inner, Budget& inner_budget) {
        expect_no_arguments("joiner", inner);
        const bool first = !std::exchange(*used, true);
        return first ? make_text("", inner_budget) : text;
      }));
}

Value raise_exception(const Arguments& arguments, Budget& budget) {
  const auto [message] = bind("raise_exception", arguments, "message");
  fail("{}", to_text(required("raise_exception", "message", message), budget));
}

Value strftime_now(const std::tm& now, const Arguments& arguments, Budget& budget) {
  const auto [format] = bind("strftime_now", arguments, "format");
  const std::string& wanted =
      text_argument("strftime_now", "format", required("strftime_now", "format", format));
  require(wanted.size() <= 1000, "strftime_now(): the format is longer than 1000 bytes");
  // strftime() gives 0 for an empty result and for one that does not fit alike: a mark tells them apart.
  std::string out(8192, '\0');
  const size_t size = std::strftime(out.data(), out.size(), (wanted + ".").c_str(), &now);
  require(size > 0, "strftime_now(): the result of the format is too long");
  return make_text(out.substr(0, size - 1), budget);
}

}  // namespace

std::optional<Value> Namespace::attribute(std::string_view name) {
  const auto found = fields_.find(std::string(name));
  if (found == fields_.end()) return std::nullopt;
  return found->second;
}

void Namespace::set(std::string_view name, Value value, Budget& budget) {
  budget.items(1);
  fields_.insert_or_assign(std::string(name), std::move(value));
}

std::optional<Value> find_global(std::string_view name, const GlobalContext& context) {
  if (name == "range") return Value(function(range));
  if (name == "dict") return Value(function(dict));
  if (name == "cycler") return Value(function(cycler));
  if (name == "joiner") return Value(function(joiner));
  if (name == "raise_exception") return Value(function(raise_exception));
  if (name == "strftime_now")
    return Value(function([now = context.now](const Arguments& arguments, Budget& budget) {
      return strftime_now(now, arguments, budget);
    }));
  if (name == "namespace")
    return Value(function([make = context.make_namespace](const Arguments& arguments, Budget& budget) {
      budget.items(4);
      auto result = make();
      each_entry("namespace", arguments, budget, [&](const Value& key, const Value& value) {
        result->set(text_argument("namespace", "key", key), value, budget);
      });
      return Value(ObjectPtr(std::move(result)));
    }));
  return std::nullopt;
}

}  // namespace quatrain::jinja
