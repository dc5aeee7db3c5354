#include "checkpoint/gguf.h"

#include <algorithm>
#include <cstring>

#include "checkpoint/element_type.h"

namespace quatrain {
namespace {

constexpr uint32_t kMaxDimensions = 4;
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMaxElements = uint64_t{1} << 27;  // of a metadata array: 500 times the largest vocabulary
constexpr int kMaxArrayDepth = 4;

// ggml's numbers; the gaps were types that no file may use any more.
constexpr std::string_view kTensorTypes[] = {
    "F32",   "F16",    "Q4_0",  "Q4_1", "",     "",        "Q5_0",   "Q5_1",    "Q8_0",  "Q8_1",   "Q2_K",
    "Q3_K",  "Q4_K",   "Q5_K",  "Q6_K", "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S",
    "IQ2_S", "IQ4_XS", "I8",    "I16",  "I32",  "I64",     "F64",    "IQ1_M",   "BF16",  "",       "",
    "",      "TQ1_0",  "TQ2_0", "",     "",     "",        "MXFP4",  "NVFP4",
};

// Bytes of a value in the file; the least where it varies.
uint64_t least_bytes(GgufType type) {
  switch (type) {
    case GgufType::U8:
    case GgufType::I8:
    case GgufType::Bool:
      return 1;
    case GgufType::U16:
    case GgufType::I16:
      return 2;
    case GgufType::U32:
    case GgufType::I32:
    case GgufType::F32:
      return 4;
    case GgufType::Array:
      return 12;
    case GgufType::String:
    case GgufType::U64:
    case GgufType::I64:
    case GgufType::F64:
      return 8;
  }
  return 1;
}

// Reads forward through the file; every read past the end is an error that names what was wanted.
class Cursor {
 public:
  Cursor(std::span<const std::byte> bytes, std::string where) : bytes_(bytes), where_(std::move(where)) {}

  size_t position() const { return position_; }
  uint64_t left() const { return bytes_.size() - position_; }
  const std::string& where() const { return where_; }

  template <typename T>
  T number(std::string_view what) {
    T value;
    std::memcpy(&value, take(sizeof(T), what), sizeof(T));
    return value;
  }

  std::string string(std::string_view what) {
    const auto length = number<uint64_t>(what);
    require(length <= left(),
            "{}: {}: a string of {} bytes where {} are left; the file is truncated or damaged", where_, what,
            length, left());
    return {reinterpret_cast<const char*>(take(static_cast<size_t>(length), what)),
            static_cast<size_t>(length)};
  }

  // A number of items that each take at least `item_bytes`.
  uint64_t count(std::string_view what, uint64_t item_bytes) {
    const auto count = number<uint64_t>(what);
    require(count <= left() / item_bytes, "{}: {} is {}, more than the file's {} bytes can hold", where_,
            what, count, bytes_.size());
    return count;
  }

 private:
  const std::byte* take(size_t size, std::string_view what) {
    require(size <= left(), "{}: ends in the middle of {}; the file is truncated", where_, what);
    position_ += size;
    return bytes_.data() + position_ - size;
  }

  std::span<const std::byte> bytes_;
  std::string where_;
  size_t position_ = 0;
};

GgufType read_type(Cursor& cursor, std::string_view key) {
  const auto number = cursor.number<uint32_t>(key);
  require(number <= static_cast<uint32_t>(GgufType::F64), "{}: metadata key {}: unknown value type {}",
          cursor.where(), key, number);
  return static_cast<GgufType>(number);
}

bool read_bool(Cursor& cursor, std::string_view key) {
  const auto byte = cursor.number<uint8_t>(key);
  require(byte <= 1, "{}: metadata key {}: a truth value of {}", cursor.where(), key, byte);
  return byte == 1;
}

uint64_t read_unsigned(Cursor& cursor, GgufType type, std::string_view key) {
  switch (type) {
    case GgufType::U8:
      return cursor.number<uint8_t>(key);
    case GgufType::U16:
      return cursor.number<uint16_t>(key);
    case GgufType::U32:
      return cursor.number<uint32_t>(key);
    default:
      return cursor.number<uint64_t>(key);
  }
}

int64_t read_signed(Cursor& cursor, GgufType type, std::string_view key) {
  switch (type) {
    case GgufType::I8:
      return cursor.number<int8_t>(key);
    case GgufType::I16:
      return cursor.number<int16_t>(key);
    case GgufType::I32:
      return cursor.number<int32_t>(key);
    default:
      return cursor.number<int64_t>(key);
  }
}

double read_float(Cursor& cursor, GgufType type, std::string_view key) {
  return type == GgufType::F32 ? cursor.number<float>(key) : cursor.number<double>(key);
}

template <typename T, typename Read>
std::vector<T> read_elements(uint64_t count, Read read) {
  std::vector<T> values;
  values.reserve(static_cast<size_t>(count));
  for (uint64_t i = 0; i < count; ++i) values.push_back(read());
  return values;
}

GgufValue read_array(Cursor& cursor, std::string_view key, int depth) {
  require(depth <= kMaxArrayDepth, "{}: metadata key {}: arrays nested deeper than {}", cursor.where(), key,
          kMaxArrayDepth);
  GgufValue value;
  value.type = read_type(cursor, key);
  const uint64_t count = cursor.count(key, least_bytes(value.type));
  require(count <= kMaxElements, "{}: metadata key {}: an array of {} values", cursor.where(), key, count);
  switch (value.type) {
    case GgufType::Bool:
      value.data = read_elements<bool>(count, [&] { return read_bool(cursor, key); });
      break;
    case GgufType::U8:
    case GgufType::U16:
    case GgufType::U32:
    case GgufType::U64:
      value.data = read_elements<uint64_t>(count, [&] { return read_unsigned(cursor, value.type, key); });
      break;
    case GgufType::I8:
    case GgufType::I16:
    case GgufType::I32:
    case GgufType::I64:
      value.data = read_elements<int64_t>(count, [&] { return read_signed(cursor, value.type, key); });
      break;
    case GgufType::F32:
    case GgufType::F64:
      value.data = read_elements<double>(count, [&] { return read_float(cursor, value.type, key); });
      break;
    case GgufType::String:
      value.data = read_elements<std::string>(count, [&] { return cursor.string(key); });
      break;
    case GgufType::Array:
      value.data = read_elements<GgufValue>(count, [&] { return read_array(cursor, key, depth + 1); });
      break;
  }
  return value;
}

GgufValue read_value(Cursor& cursor, std::string_view key) {
  const GgufType type = read_type(cursor, key);
  switch (type) {
    case GgufType::Bool:
      return {type, read_bool(cursor, key)};
    case GgufType::U8:
    case GgufType::U16:
    case GgufType::U32:
    case GgufType::U64:
      return {type, read_unsigned(cursor, type, key)};
    case GgufType::I8:
    case GgufType::I16:
    case GgufType::I32:
    case GgufType::I64:
      return {type, read_signed(cursor, type, key)};
    case GgufType::F32:
    case GgufType::F64:
      return {type, read_float(cursor, type, key)};
    case GgufType::String:
      return {type, cursor.string(key)};
    case GgufType::Array:
      return read_array(cursor, key, 1);
  }
  fail("{}: metadata key {}: unknown value type", cursor.where(), key);
}

// A tensor as the header describes it, before the data's place is known.
struct Declared {
  TensorInfo info;
  uint64_t offset = 0;  // from the start of the data
  uint64_t bytes = 0;
};

Declared read_tensor(Cursor& cursor, uint64_t alignment) {
  Declared tensor;
  tensor.info.name = cursor.string("a tensor's name");
  const std::string place = fmt::format("{}: tensor {}", cursor.where(), tensor.info.name);
  const auto dimensions = cursor.number<uint32_t>(tensor.info.name);
  require(dimensions <= kMaxDimensions, "{}: {} dimensions, GGUF has at most {}", place, dimensions,
          kMaxDimensions);
  for (uint32_t i = 0; i < dimensions; ++i)  // above 2^63 they turn negative, which tensor_bytes refuses
    tensor.info.shape.push_back(static_cast<int64_t>(cursor.number<uint64_t>(tensor.info.name)));
  std::reverse(tensor.info.shape.begin(), tensor.info.shape.end());
  const auto number = cursor.number<uint32_t>(tensor.info.name);
  tensor.info.type = gguf_type_name(number);
  require(!tensor.info.type.empty(),
          "{}: type {} is not one of GGUF's known types; convert the model to F16 or Q8_0", place, number);
  tensor.bytes = tensor_bytes(*find_element_type(tensor.info.type), tensor.info.shape, place);
  tensor.offset = cursor.number<uint64_t>(tensor.info.name);
  require(tensor.offset % alignment == 0, "{}: offset {} is no multiple of the alignment {}", place,
          tensor.offset, alignment);
  return tensor;
}

std::string_view kind_of(const GgufValue& value) {
  constexpr std::string_view kKinds[] = {"a truth value",
                                         "an integer",
                                         "an integer",
                                         "a float",
                                         "a string",
                                         "an array of truth values",
                                         "an array of integers",
                                         "an array of integers",
                                         "an array of floats",
                                         "an array of strings",
                                         "an array of arrays"};
  return kKinds[value.data.index()];
}

}  // namespace

std::string_view gguf_type_name(uint32_t number) {
  return number < std::size(kTensorTypes) ? kTensorTypes[number] : std::string_view();
}

std::optional<uint32_t> gguf_type_number(std::string_view name) {
  const auto* found = std::find(std::begin(kTensorTypes), std::end(kTensorTypes), name);
  if (name.empty() || found == std::end(kTensorTypes)) return std::nullopt;
  return static_cast<uint32_t>(found - std::begin(kTensorTypes));
}

GgufFile::GgufFile(const fs::path& path) : TensorTable(path), file_(path) {
  parse(file_->bytes());
}

GgufFile::GgufFile(std::span<const std::byte> bytes, const fs::path& name) : TensorTable(name) {
  parse(bytes);
}

const GgufValue* GgufFile::find_metadata(std::string_view key) const {
  const auto found = metadata_.find(key);
  return found == metadata_.end() ? nullptr : &found->second;
}

void GgufFile::parse(std::span<const std::byte> bytes) {
  const std::string where = path().string();
  Cursor cursor(bytes, where);
  require(bytes.size() >= 24 && std::memcmp(bytes.data(), "GGUF", 4) == 0, "{}: is no GGUF file", where);
  cursor.number<uint32_t>("the magic");
  version_ = cursor.number<uint32_t>("the version");
  require(
      version_ == 2 || version_ == 3,
      "{}: GGUF version {} ({}); versions 2 and 3, little-endian, can be read", where, version_,
      (version_ & 0xFFFF) == 0 ? "a big-endian file" : "convert the model again with a current converter");
  const uint64_t tensors = cursor.count("the number of tensors", 24);
  const uint64_t keys = cursor.count("the number of metadata keys", 13);

  for (uint64_t i = 0; i < keys; ++i) {
    std::string key = cursor.string("a metadata key");
    GgufValue value = read_value(cursor, key);
    const auto [entry, fresh] = metadata_.emplace(std::move(key), std::move(value));
    require(fresh, "{}: metadata key {} occurs twice", where, entry->first);
  }
  require(get_or<int64_t>("split.count", 1) <= 1,
          "{}: is one part of a split GGUF; merge the parts (llama-gguf-split --merge) first", where);
  const auto alignment = static_cast<uint64_t>(get_or<int64_t>("general.alignment", kDefaultAlignment));
  require(alignment >= 1 && alignment <= (1 << 24) && (alignment & (alignment - 1)) == 0,
          "{}: general.alignment {} is no power of two up to 2^24", where, alignment);

  std::vector<Declared> declared;
  for (uint64_t i = 0; i < tensors; ++i) declared.push_back(read_tensor(cursor, alignment));
  if (declared.empty()) return;
  const uint64_t begin = (cursor.position() + alignment - 1) / alignment * alignment;
  const uint64_t size = begin <= bytes.size() ? bytes.size() - begin : 0;
  std::stable_sort(declared.begin(), declared.end(), [](const Declared& a, const Declared& b) {
    return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
  });
  uint64_t end = 0;
  for (Declared& tensor : declared) {
    require(
        tensor.offset <= size && tensor.bytes <= size - tensor.offset,
        "{}: tensor {}: {} bytes at offset {} do not lie in the file's {} data bytes; the file is truncated",
        where, tensor.info.name, tensor.bytes, tensor.offset, size);
    require(tensor.offset >= end, "{}: tensor {} overlaps the one before it", where, tensor.info.name);
    end = tensor.offset + tensor.bytes;
    add(std::move(tensor.info),
        bytes.subspan(static_cast<size_t>(begin + tensor.offset), static_cast<size_t>(tensor.bytes)), where);
  }
}

template <typename T>
T GgufFile::convert(const GgufValue& value, std::string_view key) const {
  if constexpr (!std::is_same_v<T, std::vector<int64_t>>)
    if (const T* held = std::get_if<T>(&value.data)) return *held;
  const auto too_large = [&] { fail("{}: metadata key {} is above 2^63", path().string(), key); };
  if constexpr (std::is_same_v<T, int64_t>) {
    if (const auto* held = std::get_if<uint64_t>(&value.data)) {
      if (*held > uint64_t{INT64_MAX}) too_large();
      return static_cast<int64_t>(*held);
    }
  } else if constexpr (std::is_same_v<T, double>) {
    if (const auto* held = std::get_if<uint64_t>(&value.data)) return static_cast<double>(*held);
    if (const auto* held = std::get_if<int64_t>(&value.data)) return static_cast<double>(*held);
  } else if constexpr (std::is_same_v<T, std::vector<int64_t>>) {
    if (const auto* held = std::get_if<std::vector<int64_t>>(&value.data)) return *held;
    if (const auto* held = std::get_if<std::vector<uint64_t>>(&value.data)) {
      if (std::any_of(held->begin(), held->end(), [](uint64_t v) { return v > uint64_t{INT64_MAX}; }))
        too_large();
      return {held->begin(), held->end()};
    }
  }
  fail("{}: metadata key {} is {}, which is not what was expected there", path().string(), key,
       kind_of(value));
}

template bool GgufFile::convert(const GgufValue&, std::string_view) const;
template int64_t GgufFile::convert(const GgufValue&, std::string_view) const;
template double GgufFile::convert(const GgufValue&, std::string_view) const;
template std::string GgufFile::convert(const GgufValue&, std::string_view) const;
template std::vector<int64_t> GgufFile::convert(const GgufValue&, std::string_view) const;
template std::vector<double> GgufFile::convert(const GgufValue&, std::string_view) const;
template std::vector<std::string> GgufFile::convert(const GgufValue&, std::string_view) const;

}  // namespace quatrain
