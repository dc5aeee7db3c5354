// Functions and objects that every template can name.
#pragma once

#include <ctime>
#include <functional>
#include <string_view>

#include "text/jinja/arguments.h"

namespace quatrain::jinja {

/// A function as a value.
class Function : public Object {
 public:
  using Body = std::function<Value(const Arguments&, Budget&)>;
  explicit Function(Body body) : body_(std::move(body)) {}
  std::string_view type_name() const override { return "function"; }
  bool callable() const override { return true; }
  Value call(const Arguments& arguments, Budget& budget) override { return body_(arguments, budget); }

 private:
  Body body_;
};

/// namespace(): the one object that templates may change. The render owns it to its end, since it may hold
/// itself.
class Namespace : public Object {
 public:
  std::string_view type_name() const override { return "Namespace"; }
  std::optional<Value> attribute(std::string_view name) override;
  void set(std::string_view name, Value value, Budget& budget);
  void clear() { fields_.clear(); }

 private:
  std::unordered_map<std::string, Value> fields_;
};

/// What functions need from the render.
struct GlobalContext {
  std::tm now;
  std::function<std::shared_ptr<Namespace>()> make_namespace;
};

/// range, dict, namespace, cycler, joiner, raise_exception, strftime_now; nothing for other names.
std::optional<Value> find_global(std::string_view name, const GlobalContext& context);

}  // namespace quatrain::jinja
