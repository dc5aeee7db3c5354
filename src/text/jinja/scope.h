// Variables of one block, and of those around it.
#pragma once

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace quatrain::jinja {

class Scope;
using ScopePtr = std::shared_ptr<Scope>;

/// Names point into the syntax tree or are literals, both of which outlive the render.
class Scope {
 public:
  explicit Scope(ScopePtr parent) : parent_(std::move(parent)) {}

  const Value* find(std::string_view name) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->parent_.get())
      for (const auto& [key, value] : scope->variables_)
        if (key == name) return &value;
    return nullptr;
  }
  void set(std::string_view name, Value value) {
    for (auto& [key, old] : variables_)
      if (key == name) {
        old = std::move(value);
        return;
      }
    variables_.emplace_back(name, std::move(value));
  }
  void clear() { variables_.clear(); }

 private:
  ScopePtr parent_;
  std::vector<std::pair<std::string_view, Value>> variables_;
};

}  // namespace quatrain::jinja
