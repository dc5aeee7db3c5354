#include "text/jinja/json_value.h"

#include <algorithm>
#include <cmath>

#include "text/jinja/unicode.h"

namespace quatrain::jinja {
namespace {

void append_escape(std::string& out, char32_t code) {
  if (code >= 0x10000) {
    code -= 0x10000;
    out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + static_cast<uint32_t>(code >> 10),
                       0xDC00 + static_cast<uint32_t>(code & 0x3FF));
  } else {
    out += fmt::format("\\u{:04x}", static_cast<uint32_t>(code));
  }
}

void append_string(std::string_view text, bool ensure_ascii, std::string& out) {
  static constexpr std::string_view kPlain = "\"\\\n\r\t\b\f", kNames = "\"\\nrtbf";
  out += '"';
  for (size_t i = 0; i < text.size();) {
    const CodePoint point = code_point_at(text, i);
    const size_t named =
        point.value < 0x80 ? kPlain.find(static_cast<char>(point.value)) : std::string_view::npos;
    if (named != std::string_view::npos) {
      out += '\\';
      out += kNames[named];
    } else if (point.value < 0x20 || (ensure_ascii && point.value >= 0x7F)) {
      append_escape(out, point.value);
    } else {
      out += text.substr(i, point.size);
    }
    i += point.size;
  }
  out += '"';
}

std::string float_json(double number) {
  if (std::isnan(number)) return "NaN";
  if (std::isinf(number)) return number > 0 ? "Infinity" : "-Infinity";
  return float_repr(number);
}

class Writer {
 public:
  Writer(const JsonStyle& style, Budget& budget) : style_(style), budget_(budget) {}

  std::string run(const Value& value) {
    write(value);
    return std::move(out_);
  }

 private:
  void write(const Value& value) {
    budget_.step();
    if (value.none()) return put("null");
    if (const bool* flag = value.get<bool>()) return put(*flag ? "true" : "false");
    if (const int64_t* integer = value.get<int64_t>()) return put(std::to_string(*integer));
    if (const double* number = value.get<double>()) return put(float_json(*number));
    if (const Text* text = value.text()) {
      budget_.text(text->bytes.size());
      append_string(text->bytes, style_.ensure_ascii, out_);
      return check();
    }
    if (const Sequence* list = value.sequence();
        list != nullptr && (list->kind == Sequence::Kind::List || list->kind == Sequence::Kind::Tuple))
      return write_list(list->items);
    if (const Dict* dict = value.dict()) return write_dict(dict->entries());
    fail("Object of type {} is not JSON serializable", type_name(value));
  }

  void write_list(const std::vector<Value>& items) {
    if (items.empty()) return put("[]");
    out_ += '[';
    ++level_;
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      new_line();
      write(items[i]);
    }
    --level_;
    new_line();
    put("]");
  }

  void write_dict(std::vector<std::pair<Value, Value>> entries) {
    if (entries.empty()) return put("{}");
    budget_.items(entries.size());
    if (style_.sort_keys)
      std::stable_sort(entries.begin(), entries.end(), [&](const auto& a, const auto& b) {
        return order(a.first, b.first, budget_).value_or(0) < 0;
      });
    out_ += '{';
    ++level_;
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      new_line();
      append_string(key_text(entries[i].first), style_.ensure_ascii, out_);
      out_ += style_.key_separator;
      write(entries[i].second);
    }
    --level_;
    new_line();
    put("}");
  }

  std::string key_text(const Value& key) const {
    if (const Text* text = key.text()) return text->bytes;
    if (key.none()) return "null";
    if (const bool* flag = key.get<bool>()) return *flag ? "true" : "false";
    if (const int64_t* integer = key.get<int64_t>()) return std::to_string(*integer);
    if (const double* number = key.get<double>()) return float_json(*number);
    fail("keys must be str, int, float, bool or None, not {}", type_name(key));
  }

  void new_line() {
    if (!style_.indent) return;
    budget_.bytes(style_.indent->size() * level_ + 1);
    out_ += '\n';
    for (size_t i = 0; i < level_; ++i) out_ += *style_.indent;
    check();
  }

  void put(std::string_view text) {
    budget_.bytes(text.size());
    out_ += text;
    check();
  }

  void check() const {
    require(out_.size() <= Budget::kMaxTextBytes, "tojson makes a string that is too large");
  }

  const JsonStyle& style_;
  Budget& budget_;
  std::string out_;
  size_t level_ = 0;
};

}  // namespace

Value from_json(const OrderedJson& json, Budget& budget) {
  const Budget::Level level(budget);
  switch (json.type()) {
    case OrderedJson::value_t::null:
    case OrderedJson::value_t::discarded:
      return {};
    case OrderedJson::value_t::boolean:
      return Value(json.get<bool>());
    case OrderedJson::value_t::number_integer:
      return Value(json.get<int64_t>());
    case OrderedJson::value_t::number_unsigned:
      require(json.get<uint64_t>() <= INT64_MAX, "the number {} does not fit 64 bits", json.get<uint64_t>());
      return Value(json.get<int64_t>());
    case OrderedJson::value_t::number_float:
      return Value(json.get<double>());
    case OrderedJson::value_t::string:
      return make_text(json.get<std::string>(), budget);
    case OrderedJson::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const auto& item : json) items.push_back(from_json(item, budget));
      return make_sequence(std::move(items), budget);
    }
    case OrderedJson::value_t::object: {
      auto dict = std::make_shared<Dict>();
      for (const auto& [key, item] : json.items()) dict->set(key, from_json(item, budget), budget);
      return Value(std::move(dict));
    }
    case OrderedJson::value_t::binary:
      break;
  }
  fail("a template's variables cannot hold binary data");
}

std::string to_json(const Value& value, const JsonStyle& style, Budget& budget) {
  return Writer(style, budget).run(value);
}

}  // namespace quatrain::jinja
