// Fields of a request's JSON: typed, bounded, and with errors that name the field.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace quatrain {

/// JSON that a client, or a model that it steers, wrote: not deeper than parse_ordered_json() allows, and not
/// more keys than are built in a moment. Errors begin with `where`.
OrderedJson parse_request_json(std::string_view text, std::string_view where);

/// A view of an object. Absent and null are alike.
class RequestFields {
 public:
  explicit RequestFields(const OrderedJson& object, std::string prefix = {})
      : object_(object), prefix_(std::move(prefix)) {}

  /// Null when absent.
  const OrderedJson* find(std::string_view name) const;
  bool has(std::string_view name) const { return find(name) != nullptr; }
  /// As fields of the whole request are named in errors: "stream_options.include_usage".
  std::string path(std::string_view name) const { return prefix_ + std::string(name); }

  bool boolean(std::string_view name, bool fallback) const;
  /// A whole number in [low, high].
  std::optional<int64_t> integer(std::string_view name, int64_t low, int64_t high) const;
  /// A number in [low, high].
  std::optional<double> number(std::string_view name, double low, double high) const;
  std::optional<std::string> text(std::string_view name) const;
  /// One text, or a list of at most `most` texts.
  std::vector<std::string> texts(std::string_view name, size_t most) const;
  /// A list of token ids.
  static std::vector<int32_t> ids(const OrderedJson& list, const std::string& path);

  /// Refuses fields that would change the answer if this server knew them: present and not null or false.
  void refuse(std::initializer_list<std::string_view> names) const;

 private:
  const OrderedJson& object_;
  std::string prefix_;
};

}  // namespace quatrain
