#include "checkpoint/stored_codes.h"

#include <numeric>

#include "base/error.h"
#include "base/half.h"
#include "checkpoint/gguf_codes.h"
#include "checkpoint/packed/packed_source.h"

namespace quatrain {
namespace {

// A residual block that nests with the weight group: one divides the other.
int64_t residual_block_for(int64_t group) {
  constexpr int64_t kUsual = 128;
  return group == 0 || kUsual % group == 0 || group % kUsual == 0 ? kUsual : group;
}

}  // namespace

void StoredCodes::dequantize_row(int64_t row, float* out) const {
  const int8_t* from = codes.data() + row * columns;
  const float* scales = scale.data() + row * groups();
  for (int64_t k = 0; k < columns; ++k)
    out[k] = scales[group == 0 ? 0 : k / group] * static_cast<float>(from[k]);
}

std::optional<StoredCodes> read_stored_codes(const TensorSource& source, const TensorInfo& tensor,
                                             int64_t begin, int64_t count) {
  if (const auto* packed = dynamic_cast<const PackedSource*>(&source)) {
    const PackedWeight* weight = packed->packed(tensor);
    return weight == nullptr ? std::nullopt : weight->codes(begin, count);
  }
  if (tensor.type != "Q4_0" && tensor.type != "Q8_0") return std::nullopt;
  return decode_gguf_codes(source, tensor, begin, count);
}

ActivationPolicy stored_activation(const TensorSource& source, const TensorInfo& tensor) {
  const auto* packed = dynamic_cast<const PackedSource*>(&source);
  const PackedWeight* weight = packed == nullptr ? nullptr : packed->packed(tensor);
  return weight == nullptr ? ActivationPolicy{} : weight->activation;
}

std::optional<NibblePlanes> planes_of_codes(const StoredCodes& codes, std::string& why) {
  if (codes.columns % 2 != 0) {
    why = fmt::format("its rows have {} columns, planes have an even number", codes.columns);
    return std::nullopt;
  }
  NibblePlanes planes;
  planes.rows = codes.rows;
  planes.columns = codes.columns;
  planes.weight_group = codes.group;
  planes.residual_block = residual_block_for(codes.group);
  // weight = scale c / 16: c = 16 code at 4 bits, c = code at 8.
  const bool wide = codes.bits == 8;
  planes.scale.resize(codes.scale.size());
  for (size_t i = 0; i < codes.scale.size(); ++i) {
    const float scale = wide ? 16 * codes.scale[i] : codes.scale[i];
    if (codes.group != 0 && fp16_to_float(float_to_fp16(scale)) != scale) {
      why = fmt::format("the scale {} of a group is no FP16 number", scale);
      return std::nullopt;
    }
    planes.scale[i] = scale == 0 ? 1 : scale;
  }
  const auto code_at = [&](int64_t row, int64_t column) {
    if (row >= codes.rows || column >= codes.columns) return 0;
    const int64_t group = row * codes.groups() + (codes.group == 0 ? 0 : column / codes.group);
    return codes.scale[static_cast<size_t>(group)] == 0
               ? 0
               : int{codes.codes[static_cast<size_t>(row * codes.columns + column)]};
  };
  planes.hi.resize(static_cast<size_t>(codes.rows * codes.columns / 2));
  for (int64_t row = 0; row < codes.rows; ++row)
    for (int64_t column = 0; column < codes.columns; column += 2) {
      const int low = code_at(row, column) >> (wide ? 4 : 0);
      const int high = code_at(row, column + 1) >> (wide ? 4 : 0);
      planes.hi[static_cast<size_t>((row * codes.columns + column) / 2)] =
          static_cast<uint8_t>((low & 15) | ((high & 15) << 4));
    }
  if (!wide) return planes;
  planes.residual_index.resize(static_cast<size_t>(planes.block_rows() * planes.block_columns()));
  std::iota(planes.residual_index.begin(), planes.residual_index.end(), 0);
  planes.lo.reserve(planes.residual_index.size() * static_cast<size_t>(kResidualRows) *
                    static_cast<size_t>(planes.residual_block / 2));
  for (int64_t block = 0; block < std::ssize(planes.residual_index); ++block) {
    const int64_t first_row = block / planes.block_columns() * kResidualRows;
    const int64_t first_column = block % planes.block_columns() * planes.residual_block;
    for (int64_t row = first_row; row < first_row + kResidualRows; ++row)
      for (int64_t column = first_column; column < first_column + planes.residual_block; column += 2)
        planes.lo.push_back(
            static_cast<uint8_t>((code_at(row, column) & 15) | ((code_at(row, column + 1) & 15) << 4)));
  }
  return planes;
}

StoredCodes in_groups_of(StoredCodes codes, int64_t group) {
  if (group == codes.group) return codes;
  const int64_t width = codes.group == 0 ? codes.columns : codes.group;
  require(group > 0 && width % group == 0, "groups of {} do not cut groups of {}", group, width);
  const std::vector<float> scale = std::move(codes.scale);
  const int64_t groups = codes.groups();
  codes.group = group;
  codes.scale.resize(static_cast<size_t>(codes.rows * codes.groups()));
  for (int64_t row = 0; row < codes.rows; ++row)
    for (int64_t g = 0; g < codes.groups(); ++g)
      codes.scale[static_cast<size_t>(row * codes.groups() + g)] =
          scale[static_cast<size_t>(row * groups + g * group / width)];
  return codes;
}

StoredCodes codes_of_planes(const NibblePlanes& planes) {
  StoredCodes out{.bits = planes.residual_index.empty() ? 4 : 8,
                  .rows = planes.rows,
                  .columns = planes.columns,
                  .group = planes.weight_group,
                  .codes = std::vector<int8_t>(static_cast<size_t>(planes.rows * planes.columns)),
                  .scale = planes.scale};
  const bool wide = out.bits == 8;
  const auto put = [&](int64_t at, int hi) {
    hi = (hi ^ 8) - 8;
    out.codes[static_cast<size_t>(at)] = static_cast<int8_t>(wide ? 16 * hi : hi);
  };
  for (size_t byte = 0; byte < planes.hi.size(); ++byte) {
    put(static_cast<int64_t>(2 * byte), planes.hi[byte] & 15);
    put(static_cast<int64_t>(2 * byte + 1), planes.hi[byte] >> 4);
  }
  if (!wide) return out;
  for (float& scale : out.scale) scale /= 16;
  const uint8_t* lo = planes.lo.data();
  for (const int32_t block : planes.residual_index) {
    const int64_t first_row = block / planes.block_columns() * kResidualRows;
    const int64_t first_column = block % planes.block_columns() * planes.residual_block;
    for (int64_t row = first_row; row < first_row + kResidualRows; ++row)
      for (int64_t column = first_column; column < first_column + planes.residual_block; ++column) {
        const int nibble = column % 2 == 0 ? *lo & 15 : *lo >> 4;
        if (row < planes.rows && column < planes.columns)
          out.codes[static_cast<size_t>(row * planes.columns + column)] += static_cast<int8_t>(nibble);
        lo += column % 2;
      }
  }
  return out;
}

}  // namespace quatrain
