#include "checkpoint/packed/packed_weight.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "checkpoint/element_type.h"

namespace quatrain {

void PackedWeight::read_rows(int64_t begin, std::span<float> out) const {
  const int64_t count = std::ssize(out) / columns;
  std::vector<int16_t> codes(out.size());
  std::vector<float> scale(static_cast<size_t>(count * groups_));
  unpack(begin, count, codes.data());
  scales(begin, count, scale.data());
  const int64_t width = group_ == 0 ? columns : group_;
  for (int64_t row = 0; row < count; ++row)
    for (int64_t k = 0; k < columns; ++k) {
      const int64_t group = order_.empty() ? k / width : order_[static_cast<size_t>(k)];
      const auto at = static_cast<size_t>(row * columns + k);
      out[at] = scale[static_cast<size_t>(row * groups_ + group)] * static_cast<float>(codes[at]);
    }
}

std::optional<StoredCodes> PackedWeight::codes(int64_t begin, int64_t count) const {
  if (code_bits_ == 0 || !order_.empty()) return std::nullopt;
  StoredCodes out{.bits = code_bits_,
                  .rows = count,
                  .columns = columns,
                  .group = groups_ == 1 ? 0 : group_,
                  .codes = std::vector<int8_t>(static_cast<size_t>(count * columns)),
                  .scale = std::vector<float>(static_cast<size_t>(count * groups_))};
  std::vector<int16_t> wide(out.codes.size());
  unpack(begin, count, wide.data());
  std::ranges::transform(wide, out.codes.begin(), [](int16_t code) { return static_cast<int8_t>(code); });
  scales(begin, count, out.scale.data());
  for (size_t i = 0; i < out.scale.size(); ++i)
    require(std::isfinite(out.scale[i]), "{}: the scale of row {}, group {} is {}", where_,
            begin + static_cast<int64_t>(i) / groups_, static_cast<int64_t>(i) % groups_, out.scale[i]);
  return out;
}

void PackedWeight::set_order(const TensorSource& source, const TensorInfo& tensor) {
  require_packed(source, tensor, {"I32"}, {columns}, "a group for each input");
  const std::span<const std::byte> bytes = source.raw(tensor);
  const int64_t width = group_ == 0 ? columns : group_;
  order_.resize(static_cast<size_t>(columns));
  bool plain = true;
  for (int64_t k = 0; k < columns; ++k) {
    const auto group = static_cast<int32_t>(packed_word(bytes, k));
    require(group >= 0 && group < groups_, "{}: tensor {}: input {} is in group {} of {}",
            source.path().string(), tensor.name, k, group, groups_);
    order_[static_cast<size_t>(k)] = group;
    plain = plain && group == k / width;
  }
  if (plain) order_.clear();
}

const TensorInfo& packed_part(const TensorSource& source, const std::string& linear,
                              std::string_view suffix) {
  const TensorInfo* tensor = source.find(fmt::format("{}.{}", linear, suffix));
  require(tensor != nullptr, "{}: {} is quantised, but its tensor {}.{} is missing", source.path().string(),
          linear, linear, suffix);
  return *tensor;
}

void require_packed(const TensorSource& source, const TensorInfo& tensor,
                    std::initializer_list<std::string_view> types, const std::vector<int64_t>& shape,
                    std::string_view why) {
  require(std::ranges::find(types, tensor.type) != types.end() && tensor.shape == shape,
          "{}: tensor {} is {} [{}], not {} [{}] ({}); it does not fit the config's bits and group",
          source.path().string(), tensor.name, tensor.type, fmt::join(tensor.shape, ", "),
          fmt::join(types, " or "), fmt::join(shape, ", "), why);
}

uint32_t packed_word(std::span<const std::byte> bytes, int64_t index) {
  uint32_t word;
  std::memcpy(&word, bytes.data() + static_cast<size_t>(index) * sizeof word, sizeof word);
  return word;
}

void read_elements(const TensorSource& source, const TensorInfo& tensor, int64_t first, int64_t count,
                   float* out) {
  const ElementType* type = find_element_type(tensor.type);
  type->decode(source.raw(tensor).data() + static_cast<size_t>(first) * type->bytes, count, out);
}

void read_scale_columns(const TensorSource& source, const TensorInfo& scales, int64_t rows, int64_t begin,
                        int64_t count, float* out) {
  const int64_t groups = scales.shape[0];
  std::vector<float> line(static_cast<size_t>(count));
  for (int64_t group = 0; group < groups; ++group) {
    read_elements(source, scales, group * rows + begin, count, line.data());
    for (int64_t i = 0; i < count; ++i) out[i * groups + group] = line[static_cast<size_t>(i)];
  }
}

}  // namespace quatrain
