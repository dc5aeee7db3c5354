#include "checkpoint/element_type.h"

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/half.h"
#include "checkpoint/gguf_blocks.h"

namespace quatrain {
namespace {

// Bytes in files carry no alignment.
template <typename T>
T load(const std::byte* in) {
  T value;
  std::memcpy(&value, in, sizeof(T));
  return value;
}

template <typename T>
void decode_number(const std::byte* in, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(load<T>(in + i * int64_t{sizeof(T)}));
}

void decode_f16(const std::byte* in, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = fp16_to_float(load<uint16_t>(in + 2 * i));
}

void decode_bf16(const std::byte* in, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = bf16_to_float(load<uint16_t>(in + 2 * i));
}

template <uint16_t (*Round)(float)>
void encode_half(const float* in, int64_t count, std::byte* out) {
  for (int64_t i = 0; i < count; ++i) {
    const uint16_t bits = Round(in[i]);
    std::memcpy(out + 2 * i, &bits, sizeof(bits));
  }
}

void encode_f32(const float* in, int64_t count, std::byte* out) {
  std::memcpy(out, in, static_cast<size_t>(count) * sizeof(float));
}

constexpr ElementType kTypes[] = {
    {"F32", 1, 4, decode_number<float>, encode_f32},
    {"F16", 1, 2, decode_f16, encode_half<float_to_fp16>},
    {"BF16", 1, 2, decode_bf16, encode_half<float_to_bf16>},
    {"F64", 1, 8, decode_number<double>},
    {"I8", 1, 1, decode_number<int8_t>},
    {"I16", 1, 2, decode_number<int16_t>},
    {"I32", 1, 4, decode_number<int32_t>},
    {"I64", 1, 8, decode_number<int64_t>},
    {"U8", 1, 1, decode_number<uint8_t>},
    {"U16", 1, 2, decode_number<uint16_t>},
    {"U32", 1, 4, decode_number<uint32_t>},
    {"U64", 1, 8, decode_number<uint64_t>},
    {"BOOL", 1, 1, decode_number<uint8_t>},
    {"F8_E4M3", 1, 1},
    {"F8_E5M2", 1, 1},
    {"F8_E8M0", 1, 1},
    {"C64", 1, 8},
    // GGUF's block types
    {"Q4_0", 32, 18, decode_q4_0, encode_q4_0},
    {"Q4_1", 32, 20, decode_q4_1, encode_q4_1},
    {"Q5_0", 32, 22, decode_q5_0},
    {"Q5_1", 32, 24, decode_q5_1},
    {"Q8_0", 32, 34, decode_q8_0, encode_q8_0},
    {"Q8_1", 32, 36},
    {"Q2_K", 256, 84, decode_q2_k},
    {"Q3_K", 256, 110, decode_q3_k},
    {"Q4_K", 256, 144, decode_q4_k},
    {"Q5_K", 256, 176, decode_q5_k},
    {"Q6_K", 256, 210, decode_q6_k},
    {"Q8_K", 256, 292},
    {"IQ4_NL", 32, 18, decode_iq4_nl},
    {"IQ4_XS", 256, 136},
    {"IQ3_S", 256, 110},
    {"IQ3_XXS", 256, 98},
    {"IQ2_S", 256, 82},
    {"IQ2_XS", 256, 74},
    {"IQ2_XXS", 256, 66},
    {"IQ1_S", 256, 50},
    {"IQ1_M", 256, 56},
    {"TQ1_0", 256, 54},
    {"TQ2_0", 256, 66},
    {"MXFP4", 32, 17},
    {"NVFP4", 64, 36},
};

}  // namespace

const ElementType* find_element_type(std::string_view name) {
  for (const ElementType& type : kTypes)
    if (type.name == name) return &type;
  return nullptr;
}

bool is_integer_type(std::string_view name) {
  return name == "BOOL" ||
         (name.size() > 1 && (name[0] == 'I' || name[0] == 'U') && name[1] >= '0' && name[1] <= '9');
}

size_t tensor_bytes(const ElementType& type, std::span<const int64_t> shape, std::string_view where) {
  int64_t product = 1;  // of the dimensions that are not 0, so that no partial product overflows
  bool empty = false;
  for (const int64_t dimension : shape) {
    require(dimension >= 0, "{}: dimension {} is negative", where, dimension);
    if (dimension == 0)
      empty = true;
    else
      require(!__builtin_mul_overflow(product, dimension, &product),
              "{}: the shape has more than 2^63 elements", where);
  }
  require(type.block == 1 || (!shape.empty() && shape.back() % type.block == 0),
          "{}: rows of {} columns do not divide into blocks of {} ({})", where,
          shape.empty() ? 1 : shape.back(), type.block, type.name);
  int64_t bytes = 0;
  require(!__builtin_mul_overflow(empty ? 0 : product / type.block, static_cast<int64_t>(type.bytes), &bytes),
          "{}: the tensor has more than 2^63 bytes", where);
  return static_cast<size_t>(bytes);
}

std::vector<std::byte> encode_values(const ElementType& type, std::span<const float> values,
                                     std::string_view where) {
  require(type.encode != nullptr,
          "{}: the type {} cannot be written; F32, F16, BF16, Q8_0, Q4_0 and Q4_1 can", where, type.name);
  const auto count = static_cast<int64_t>(values.size());
  require(count % type.block == 0, "{}: {} values are no whole blocks of {}", where, count, type.block);
  const auto require_finite = [&](std::span<const float> numbers, std::string_view what) {
    for (size_t i = 0; i < numbers.size(); ++i)
      require(std::isfinite(numbers[i]), "{}: value {} ({}) {}", where, i, values[i], what);
  };
  require_finite(values, "is not finite");
  std::vector<std::byte> bytes(static_cast<size_t>(count / type.block) * type.bytes);
  type.encode(values.data(), count / type.block, bytes.data());
  std::vector<float> back(values.size());
  type.decode(bytes.data(), count / type.block, back.data());
  require_finite(back, fmt::format("is too large for {}", type.name));
  return bytes;
}

}  // namespace quatrain
