// The special variable of a for loop.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "text/jinja/value.h"

namespace quatrain::jinja {

/// Walks the items that pass the loop's filter, and answers loop.index and the rest. The filter runs only as
/// far as the loop, or a look ahead (loop.last, loop.nextitem, loop.length), needs it: the body may change
/// what it sees.
class Loop : public Object {
 public:
  using Filter = std::function<bool(const Value&)>;
  Loop(const Value& iterable, Filter filter, Budget& budget);

  std::string_view type_name() const override { return "LoopContext"; }
  int depth() const override { return depth_; }
  std::optional<Value> attribute(std::string_view name) override;

  /// The next item; nothing at the end.
  std::optional<Value> next();

 private:
  std::optional<Value> pull();
  const std::optional<Value>& peek();
  int64_t length();
  Value cycle_function() const;
  Value changed_function() const;

  std::shared_ptr<const std::vector<Value>> items_;
  Filter filter_;
  int depth_;
  size_t position_ = 0;
  int64_t index0_ = -1;
  std::optional<Value> previous_, current_, ahead_;
  std::optional<int64_t> length_;
  std::shared_ptr<std::optional<std::vector<Value>>> last_changed_;
};

}  // namespace quatrain::jinja
