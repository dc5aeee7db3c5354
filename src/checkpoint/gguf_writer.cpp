#include "checkpoint/gguf_writer.h"

#include <algorithm>

#include "checkpoint/element_type.h"

namespace quatrain {
namespace {

constexpr uint64_t kAlignment = 32;  // GGUF's default
constexpr size_t kMaxName = 63;      // ggml's tensors hold 64 bytes of name, the last a zero

uint64_t align(uint64_t offset) {
  return (offset + kAlignment - 1) / kAlignment * kAlignment;
}

template <typename T>
void append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(T));  // little-endian hosts
}

void append_string(std::string& out, std::string_view text) {
  append<uint64_t>(out, text.size());
  out += text;
}

// Bits of an integer type in the file.
int bits_of(GgufType type) {
  switch (type) {
    case GgufType::U8:
    case GgufType::I8:
      return 8;
    case GgufType::U16:
    case GgufType::I16:
      return 16;
    case GgufType::U32:
    case GgufType::I32:
      return 32;
    default:
      return 64;
  }
}

// What a variant holds, as a value of `type`. Its width must hold the number.
void append_held(std::string& out, GgufType, bool value) {
  append<uint8_t>(out, value ? 1 : 0);
}

void append_held(std::string& out, GgufType type, double value) {
  if (type == GgufType::F32)
    append(out, static_cast<float>(value));
  else
    append(out, value);
}

void append_held(std::string& out, GgufType type, uint64_t value) {
  const int bits = bits_of(type);
  require(bits == 64 || value >> bits == 0, "GGUF metadata: {} does not fit {} bits", value, bits);
  out.append(reinterpret_cast<const char*>(&value), static_cast<size_t>(bits / 8));
}

void append_held(std::string& out, GgufType type, int64_t value) {
  const int bits = bits_of(type);
  require(bits == 64 || value >> (bits - 1) == 0 || value >> (bits - 1) == -1,
          "GGUF metadata: {} does not fit {} bits", value, bits);
  out.append(reinterpret_cast<const char*>(&value), static_cast<size_t>(bits / 8));
}

void append_held(std::string& out, GgufType, const std::string& value) {
  append_string(out, value);
}

void append_held(std::string& out, GgufType, const GgufValue& value);

template <typename T>
void append_held(std::string& out, GgufType type, const std::vector<T>& values) {
  append(out, static_cast<uint32_t>(type));
  append<uint64_t>(out, values.size());
  for (const auto& value : values) append_held(out, type, static_cast<const T&>(value));
}

// A value without its tag: of an array, element type, count and elements.
void append_held(std::string& out, GgufType, const GgufValue& value) {
  std::visit([&](const auto& held) { append_held(out, value.type, held); }, value.data);
}

}  // namespace

GgufWriter::GgufWriter(const fs::path& path) : path_(path), file_(path) {}

void GgufWriter::set(std::string_view key, const GgufValue& value) {
  require(!header_written_, "{}: metadata key {} comes after the first tensor's values", path_.string(), key);
  append_string(metadata_, key);
  append(metadata_, static_cast<uint32_t>(value.is_array() ? GgufType::Array : value.type));
  append_held(metadata_, value.type, value);
  ++keys_;
}

void GgufWriter::set_string(std::string_view key, std::string value) {
  set(key, {GgufType::String, std::move(value)});
}

void GgufWriter::set_u32(std::string_view key, uint32_t value) {
  set(key, {GgufType::U32, uint64_t{value}});
}

void GgufWriter::set_f32(std::string_view key, float value) {
  set(key, {GgufType::F32, double{value}});
}

void GgufWriter::set_bool(std::string_view key, bool value) {
  set(key, {GgufType::Bool, value});
}

void GgufWriter::set_strings(std::string_view key, std::vector<std::string> values) {
  set(key, {GgufType::String, std::move(values)});
}

void GgufWriter::set_i32s(std::string_view key, const std::vector<int32_t>& values) {
  set(key, {GgufType::I32, std::vector<int64_t>(values.begin(), values.end())});
}

void GgufWriter::set_f32s(std::string_view key, const std::vector<float>& values) {
  set(key, {GgufType::F32, std::vector<double>(values.begin(), values.end())});
}

void GgufWriter::declare(const std::string& name, const std::vector<int64_t>& shape, std::string_view type) {
  const std::string where = fmt::format("{}: tensor {}", path_.string(), name);
  require(!header_written_, "{}: declared after the first tensor's values", where);
  require(name.size() <= kMaxName, "{}: GGUF names have at most {} bytes", where, kMaxName);
  require(shape.size() <= 4, "{}: {} dimensions, GGUF has at most 4", where, shape.size());
  const ElementType* element = find_element_type(type);
  require(element != nullptr && element->encode != nullptr && gguf_type_number(type).has_value(),
          "{}: type {} cannot be written; F32, F16, BF16, Q8_0, Q4_0 and Q4_1 can", where, type);
  require(
      std::none_of(tensors_.begin(), tensors_.end(), [&](const Tensor& t) { return t.info.name == name; }),
      "{}: declared twice", where);
  const uint64_t offset = tensors_.empty() ? 0 : align(tensors_.back().offset + tensors_.back().bytes);
  tensors_.push_back({{name, std::string(type), shape}, offset, tensor_bytes(*element, shape, where)});
}

void GgufWriter::write_header() {
  std::string header = "GGUF";
  append<uint32_t>(header, 3);
  append<uint64_t>(header, tensors_.size());
  append<uint64_t>(header, keys_);
  header += metadata_;
  for (const Tensor& tensor : tensors_) {
    append_string(header, tensor.info.name);
    append(header, static_cast<uint32_t>(tensor.info.shape.size()));
    for (size_t i = tensor.info.shape.size(); i-- > 0;) append<int64_t>(header, tensor.info.shape[i]);
    append(header, *gguf_type_number(tensor.info.type));
    append(header, tensor.offset);
  }
  header.resize(align(header.size()));
  file_.write(header);
  data_begin_ = header.size();
  header_written_ = true;
}

void GgufWriter::write(std::string_view name, std::span<const float> rows) {
  const Tensor& tensor = take_turn(name);
  const std::string where = fmt::format("{}: tensor {}", path_.string(), name);
  const int64_t columns = tensor.info.columns();
  require(columns > 0 ? static_cast<int64_t>(rows.size()) % columns == 0 : rows.empty(),
          "{}: {} values are no whole rows of {}", where, rows.size(), columns);
  append_rows(tensor, encode_values(*find_element_type(tensor.info.type), rows, where));
}

void GgufWriter::write_blocks(std::string_view name, std::span<const std::byte> blocks) {
  append_rows(take_turn(name), blocks);
}

void GgufWriter::append_rows(const Tensor& tensor, std::span<const std::byte> bytes) {
  require(bytes.size() <= data_begin_ + tensor.offset + tensor.bytes - file_.size(),
          "{}: tensor {}: more rows than its shape has", path_.string(), tensor.info.name);
  file_.write(bytes.data(), bytes.size());
}

const GgufWriter::Tensor& GgufWriter::take_turn(std::string_view name) {
  if (!header_written_) write_header();
  // A complete tensor gives the turn to the next; padding brings that to its offset.
  while (current_ < tensors_.size() &&
         file_.size() - data_begin_ == tensors_[current_].offset + tensors_[current_].bytes &&
         tensors_[current_].info.name != name) {
    ++current_;
    file_.write(std::string(align(file_.size()) - file_.size(), '\0'));
  }
  require(current_ < tensors_.size() && tensors_[current_].info.name == name,
          "{}: tensor {}: it is the turn of {}", path_.string(), name,
          current_ < tensors_.size() ? tensors_[current_].info.name : "no tensor");
  return tensors_[current_];
}

void GgufWriter::finish() {
  if (!header_written_) write_header();
  const uint64_t needed = tensors_.empty() ? 0 : tensors_.back().offset + tensors_.back().bytes;
  require(file_.size() - data_begin_ == needed, "{}: tensors are incomplete: {} of {} bytes", path_.string(),
          file_.size() - data_begin_, needed);
  file_.write(std::string(align(file_.size()) - file_.size(), '\0'));
  file_.commit();
}

}  // namespace quatrain
