// GGUF versions 2 and 3, little-endian: typed metadata and tensors in one file.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/tensor_table.h"

namespace quatrain {

/// The types of metadata values, by their number in the file.
enum class GgufType : uint32_t { U8, I8, U16, I16, U32, I32, F32, Bool, String, Array, U64, I64, F64 };

/// One metadata value. Integers of every width are held in 64 bits and floats in FP64, both exactly; `type`
/// is the width in the file (of the elements, where an array is held).
struct GgufValue {
  using Data = std::variant<bool, uint64_t, int64_t, double, std::string, std::vector<bool>,
                            std::vector<uint64_t>, std::vector<int64_t>, std::vector<double>,
                            std::vector<std::string>, std::vector<GgufValue>>;  // the last: arrays of arrays
  GgufType type = GgufType::Bool;
  Data data;

  bool is_array() const { return data.index() >= 5; }
};

class GgufFile : public TensorTable {
 public:
  /// Maps the file and checks all of it but the tensors' values: counts and lengths against the file's size,
  /// keys and names once each, at most 4 dimensions, known types, aligned offsets without overlap.
  explicit GgufFile(const fs::path& path);
  /// The same over bytes that the caller keeps; `name` stands for the path in messages.
  GgufFile(std::span<const std::byte> bytes, const fs::path& name);

  uint32_t version() const { return version_; }
  const std::map<std::string, GgufValue, std::less<>>& metadata() const { return metadata_; }
  /// nullptr when absent.
  const GgufValue* find_metadata(std::string_view key) const;

  /// A value as T: bool, int64_t, double (integers too), std::string, or a vector of int64_t, double or
  /// std::string. Throws with the key when it is absent, of another kind, or does not fit.
  template <typename T>
  T get(std::string_view key) const {
    const GgufValue* value = find_metadata(key);
    require(value != nullptr, "{}: metadata key {} is missing", path().string(), key);
    return convert<T>(*value, key);
  }
  /// As get(); an absent key gives the fallback.
  template <typename T>
  T get_or(std::string_view key, T fallback) const {
    const GgufValue* value = find_metadata(key);
    return value == nullptr ? fallback : convert<T>(*value, key);
  }

 private:
  void parse(std::span<const std::byte> bytes);
  template <typename T>
  T convert(const GgufValue& value, std::string_view key) const;

  std::optional<MappedFile> file_;
  uint32_t version_ = 0;
  std::map<std::string, GgufValue, std::less<>> metadata_;
};

/// The name of a tensor type by its number in GGUF ("Q4_K"); empty for an unknown number.
std::string_view gguf_type_name(uint32_t number);
/// The number of a type that GGUF has; nullopt for others.
std::optional<uint32_t> gguf_type_number(std::string_view name);

}  // namespace quatrain
