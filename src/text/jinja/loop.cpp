#include "text/jinja/loop.h"

#include <algorithm>
#include <utility>

#include "text/jinja/globals.h"

namespace quatrain::jinja {

Loop::Loop(const Value& iterable, Filter filter, Budget& budget)
    : items_(shared_items_of(iterable, budget)),
      filter_(std::move(filter)),
      depth_(1 + depth_of(iterable)),
      last_changed_(std::make_shared<std::optional<std::vector<Value>>>()) {
  require(depth_ <= kMaxValueDepth, "a value is nested deeper than {} levels", kMaxValueDepth);
}

std::optional<Value> Loop::pull() {
  while (position_ < items_->size()) {
    const Value& item = (*items_)[position_++];
    if (!filter_ || filter_(item)) return item;
  }
  return std::nullopt;
}

const std::optional<Value>& Loop::peek() {
  if (!ahead_) ahead_ = pull();
  return ahead_;
}

std::optional<Value> Loop::next() {
  std::optional<Value> item = ahead_ ? std::exchange(ahead_, std::nullopt) : pull();
  if (!item) return item;
  ++index0_;
  previous_ = std::exchange(current_, item);
  return item;
}

int64_t Loop::length() {
  if (length_) return *length_;
  if (filter_) {  // read the rest up, so that it is judged once
    std::vector<Value> rest;
    while (auto item = pull()) rest.push_back(*item);
    items_ = std::make_shared<const std::vector<Value>>(std::move(rest));
    position_ = 0;
    filter_ = nullptr;
    length_ = static_cast<int64_t>(items_->size()) + index0_ + 1 + (ahead_ ? 1 : 0);
  } else {
    length_ = static_cast<int64_t>(items_->size());
  }
  return *length_;
}

Value Loop::cycle_function() const {
  return Value(ObjectPtr(std::make_shared<Function>([index = index0_](const Arguments& arguments, Budget&) {
    require(!arguments.positional.empty(), "no items for cycling given");
    return arguments.positional[static_cast<size_t>(index) % arguments.positional.size()];
  })));
}

Value Loop::changed_function() const {
  return Value(ObjectPtr(
      std::make_shared<Function>([last = last_changed_](const Arguments& arguments, Budget& budget) {
        const auto& now = arguments.positional;
        bool same = last->has_value() && (*last)->size() == now.size();
        for (size_t i = 0; same && i < now.size(); ++i) same = equal((**last)[i], now[i], budget);
        for (const Value& item : now)
          require(depth_of(item) < kMaxValueDepth / 2, "loop.changed(): a value is nested too deep");
        if (!same) *last = now;
        return Value(!same);
      })));
}

std::optional<Value> Loop::attribute(std::string_view name) {
  if (name == "index") return Value(index0_ + 1);
  if (name == "index0") return Value(index0_);
  if (name == "first") return Value(index0_ == 0);
  if (name == "last") return Value(!peek().has_value());
  if (name == "length") return Value(length());
  if (name == "revindex") return Value(length() - index0_);
  if (name == "revindex0") return Value(length() - index0_ - 1);
  if (name == "depth") return Value(int64_t{1});
  if (name == "depth0") return Value(int64_t{0});
  if (name == "previtem") return previous_ ? *previous_ : undefined_because("there is no previous item");
  if (name == "nextitem") return peek() ? *peek() : undefined_because("there is no next item");
  if (name == "cycle") return cycle_function();
  if (name == "changed") return changed_function();
  return std::nullopt;
}

}  // namespace quatrain::jinja
