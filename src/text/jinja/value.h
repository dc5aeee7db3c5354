// Values of the template language: Python's, as far as chat templates see them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja/budget.h"

namespace quatrain::jinja {

class Value;
struct Arguments;

/// A name, attribute or item that is not there: prints as nothing, is false, empty and `undefined`; any other
/// use is an error with `message`.
struct Undefined {
  std::shared_ptr<const std::string> message;
};

struct None {};

/// A string, UTF-8; `markup` marks one that |safe or |escape made: adding plain text to it escapes that text.
struct Text {
  std::string bytes;
  bool markup = false;
};

/// Everything list-like. Sequences never change once made, except that a generator is read only once.
struct Sequence {
  enum class Kind { List, Tuple, Range, Generator, KeysView, ValuesView, ItemsView };
  Kind kind = Kind::List;
  std::vector<Value> items;
  int depth = 1;
  bool spent = false;  // a generator that was read
};

/// A dict in insertion order.
class Dict {
 public:
  const std::vector<std::pair<Value, Value>>& entries() const { return entries_; }
  const Value* find(std::string_view key) const;
  const Value* find(const Value& key, Budget& budget) const;
  /// Adds, or replaces the value and keeps the place. A key that Python cannot hash is an error.
  void set(const Value& key, Value value, Budget& budget);
  void set(std::string_view key, Value value, Budget& budget);
  int depth() const { return depth_; }

 private:
  void put(std::string hash_key, const Value& key, Value value, Budget& budget);
  std::vector<std::pair<Value, Value>> entries_;
  std::unordered_map<std::string, size_t> index_;
  int depth_ = 1;
};

/// Everything else: functions, macros, namespaces, loop.
class Object {
 public:
  virtual ~Object() = default;
  virtual std::string_view type_name() const = 0;
  virtual int depth() const { return 1; }
  virtual bool callable() const { return false; }
  virtual Value call(const Arguments& arguments, Budget& budget);
  /// The attribute, or nothing where the object has none of that name.
  virtual std::optional<Value> attribute(std::string_view name);
};

using TextPtr = std::shared_ptr<const Text>;
using SequencePtr = std::shared_ptr<Sequence>;
using DictPtr = std::shared_ptr<Dict>;
using ObjectPtr = std::shared_ptr<Object>;

class Value {
 public:
  using Variant =
      std::variant<Undefined, None, bool, int64_t, double, TextPtr, SequencePtr, DictPtr, ObjectPtr>;

  Value() : data_(None{}) {}
  Value(Undefined undefined) : data_(std::move(undefined)) {}
  Value(bool value) : data_(value) {}
  Value(int64_t value) : data_(value) {}
  Value(double value) : data_(value) {}
  Value(TextPtr text) : data_(std::move(text)) {}
  Value(SequencePtr sequence) : data_(std::move(sequence)) {}
  Value(DictPtr dict) : data_(std::move(dict)) {}
  Value(ObjectPtr object) : data_(std::move(object)) {}
  /// The caller has charged the bytes.
  explicit Value(std::string text, bool markup = false)
      : data_(std::make_shared<const Text>(Text{std::move(text), markup})) {}
  template <typename T>
  Value(T*) = delete;  // a pointer would become a bool

  template <typename T>
  bool is() const {
    return std::holds_alternative<T>(data_);
  }
  template <typename T>
  const T* get() const {
    return std::get_if<T>(&data_);
  }
  const Variant& data() const { return data_; }

  bool undefined() const { return is<Undefined>(); }
  bool none() const { return is<None>(); }
  const Text* text() const { return is<TextPtr>() ? std::get<TextPtr>(data_).get() : nullptr; }
  Sequence* sequence() const { return is<SequencePtr>() ? std::get<SequencePtr>(data_).get() : nullptr; }
  const Dict* dict() const { return is<DictPtr>() ? std::get<DictPtr>(data_).get() : nullptr; }
  Object* object() const { return is<ObjectPtr>() ? std::get<ObjectPtr>(data_).get() : nullptr; }
  template <typename T>
  T* object_as() const {
    return dynamic_cast<T*>(object());
  }

 private:
  Variant data_;
};

Value undefined_because(std::string message);
Value make_text(std::string text, Budget& budget, bool markup = false);
Value make_sequence(std::vector<Value> items, Budget& budget, Sequence::Kind kind = Sequence::Kind::List);

/// Python's name of the type: "str", "dict", ... (subclasses that jinja makes of str count as str).
std::string_view type_name(const Value& value);
/// Levels of containers in the value.
int depth_of(const Value& value);
/// An int, or a bool as 0 or 1.
std::optional<int64_t> as_integer(const Value& value);
/// as_integer, or a float.
std::optional<double> as_number(const Value& value);

bool truthy(const Value& value);
/// ==
bool equal(const Value& left, const Value& right, Budget& budget);
/// Negative, 0, positive; an error where Python does not order the types. `sign` names the operator there.
/// NaN compares as unordered: the result is empty.
std::optional<int> order(const Value& left, const Value& right, Budget& budget, std::string_view sign = "<");
/// `item in container`
bool contains(const Value& container, const Value& item, Budget& budget);
/// What a for loop would visit; reads a generator up.
std::vector<Value> items_of(const Value& value, Budget& budget);
/// As items_of, without a copy where the value is a list.
std::shared_ptr<const std::vector<Value>> shared_items_of(const Value& value, Budget& budget);
/// len(); an error for what has none.
int64_t length_of(const Value& value, Budget& budget);

/// str()
std::string to_text(const Value& value, Budget& budget);
/// repr()
std::string repr(const Value& value, Budget& budget);
std::string float_repr(double value);

/// Raises the error of an undefined value; does nothing for others.
void require_defined(const Value& value);

}  // namespace quatrain::jinja
