#include "checkpoint/artifact_planes.h"

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/half.h"

namespace quatrain {
namespace {

// Nibbles of the last blocks that lie past the matrix must be zero: two files of one matrix are then equal
// byte for byte, and kernels may read whole blocks.
void check_lo_edges(const NibblePlanes& planes, std::string_view where) {
  const int64_t block = planes.residual_block, block_columns = planes.block_columns();
  const int64_t row_bytes = block / 2;
  for (size_t b = 0; b < planes.residual_index.size(); ++b) {
    const int64_t number = planes.residual_index[b];
    const int64_t rows = std::min(kResidualRows, planes.rows - number / block_columns * kResidualRows);
    const int64_t columns = std::min(block, planes.columns - number % block_columns * block);
    const uint8_t* lo = planes.lo.data() + static_cast<int64_t>(b) * kResidualRows * row_bytes;
    for (int64_t row = 0; row < kResidualRows; ++row)
      for (int64_t byte = row < rows ? columns / 2 : 0; byte < row_bytes; ++byte)
        require(lo[row * row_bytes + byte] == 0,
                "{}: weight_lo: block {} has a nibble past the matrix's edge (row {}, column {})", where,
                number, row, 2 * byte);
  }
}

void check_index(const NibblePlanes& planes, std::string_view where) {
  const int64_t blocks = planes.block_rows() * planes.block_columns();
  int64_t previous = -1;
  for (const int32_t number : planes.residual_index) {
    require(number > previous, "{}: weight_lo_index: {} after {}; the block numbers must ascend", where,
            number, previous);
    require(number < blocks, "{}: weight_lo_index: block {} of a matrix of {} blocks", where, number, blocks);
    previous = number;
  }
}

void check_scales(const NibblePlanes& planes, std::string_view where) {
  const auto groups = static_cast<size_t>(planes.groups());
  for (size_t i = 0; i < planes.scale.size(); ++i) {
    const float scale = planes.scale[i];
    require(std::isfinite(scale) && scale != 0,
            "{}: weight_scale: row {}, group {} is {}; scales are finite and not zero", where, i / groups,
            i % groups, scale);
    require(planes.weight_group == 0 || fp16_to_float(float_to_fp16(scale)) == scale,
            "{}: weight_scale: row {}, group {} ({}) is no FP16 number, as scales of groups must be", where,
            i / groups, i % groups, scale);
  }
}

// The error is the caller's text when a tensor's type or shape is not as the format says.
void require_tensor(const TensorSource& tensors, const TensorInfo& tensor, std::string_view type,
                    const std::vector<int64_t>& shape) {
  require(tensor.type == type && tensor.shape == shape, "{}: tensor {} is {} [{}], the format says {} [{}]",
          tensors.path().string(), tensor.name, tensor.type, fmt::join(tensor.shape, ", "), type,
          fmt::join(shape, ", "));
}

template <typename T>
std::vector<T> raw_values(const TensorSource& tensors, const TensorInfo& tensor) {
  const std::span<const std::byte> bytes = tensors.raw(tensor);
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

std::vector<float> float_values(const TensorSource& tensors, const TensorInfo& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.elements()));
  tensors.read_rows(tensor, 0, values);
  return values;
}

}  // namespace

void check_planes(const NibblePlanes& planes, std::string_view where) {
  require(planes.rows > 0 && planes.columns > 0 && planes.columns % 2 == 0 && planes.rows < INT32_MAX &&
              planes.columns < INT32_MAX,
          "{}: {} x {}: rows must be positive and columns positive and even", where, planes.rows,
          planes.columns);
  require(planes.weight_group >= 0, "{}: weight group {}", where, planes.weight_group);
  require(planes.residual_block > 0 && planes.residual_block % 2 == 0 &&
              planes.residual_block <= kMaxResidualBlock,
          "{}: residual block {}: must be positive, even and at most {}", where, planes.residual_block,
          kMaxResidualBlock);
  require(planes.block_rows() * planes.block_columns() <= INT32_MAX, "{}: more than 2^31 residual blocks",
          where);
  const auto require_size = [&](std::string_view tensor, size_t has, int64_t needs) {
    require(has == static_cast<size_t>(needs), "{}: {}: {} elements, {} x {} needs {}", where, tensor, has,
            planes.rows, planes.columns, needs);
  };
  require_size("weight_hi", planes.hi.size(), planes.rows * (planes.columns / 2));
  require_size("weight_scale", planes.scale.size(), planes.rows * planes.groups());
  require_size(
      "weight_lo", planes.lo.size(),
      static_cast<int64_t>(planes.residual_index.size()) * kResidualRows * (planes.residual_block / 2));
  if (!planes.bias.empty()) require_size("bias", planes.bias.size(), planes.rows);
  check_scales(planes, where);
  check_index(planes, where);
  check_lo_edges(planes, where);
  for (size_t i = 0; i < planes.bias.size(); ++i)
    require(std::isfinite(planes.bias[i]), "{}: bias: row {} is {}", where, i, planes.bias[i]);
}

NibblePlanes read_planes(const TensorSource& tensors, std::string_view linear, const LinearPolicy& policy) {
  const std::string where = fmt::format("{}: {}", tensors.path().string(), linear);
  const auto find = [&](std::string_view suffix) {
    return tensors.find(fmt::format("{}.{}", linear, suffix));
  };
  const TensorInfo* hi = find("weight_hi");
  const TensorInfo* scale = find("weight_scale");
  require(hi != nullptr && scale != nullptr, "{}: has no weight_hi and weight_scale: not a quantised linear",
          where);
  require(hi->type == "U8" && hi->shape.size() == 2 && hi->shape[0] > 0 && hi->shape[1] > 0 &&
              hi->shape[0] < INT32_MAX && hi->shape[1] < INT32_MAX / 2,
          "{}: weight_hi is {} [{}], the format says U8 [rows, columns / 2]", where, hi->type,
          fmt::join(hi->shape, ", "));
  NibblePlanes planes;
  planes.rows = hi->shape[0];
  planes.columns = 2 * hi->shape[1];
  planes.weight_group = policy.weight_group;
  planes.residual_block = policy.residual_block;
  planes.hi = raw_values<uint8_t>(tensors, *hi);
  require_tensor(tensors, *scale, planes.weight_group == 0 ? "F32" : "F16", {planes.rows, planes.groups()});
  planes.scale = float_values(tensors, *scale);

  const TensorInfo* lo = find("weight_lo");
  const TensorInfo* index = find("weight_lo_index");
  require((lo == nullptr) == (index == nullptr), "{}: has only one of weight_lo and weight_lo_index", where);
  if (lo != nullptr) {
    const int64_t blocks = index->shape.empty() ? 0 : index->shape[0];
    require_tensor(tensors, *index, "I32", {blocks});
    require_tensor(tensors, *lo, "U8", {blocks, kResidualRows, planes.residual_block / 2});
    planes.residual_index = raw_values<int32_t>(tensors, *index);
    planes.lo = raw_values<uint8_t>(tensors, *lo);
  }
  if (const TensorInfo* bias = find("bias")) {
    require(bias->shape == std::vector<int64_t>{planes.rows}, "{}: bias is [{}], the format says [{}]", where,
            fmt::join(bias->shape, ", "), planes.rows);
    planes.bias = float_values(tensors, *bias);
  }
  check_planes(planes, where);
  return planes;
}

}  // namespace quatrain
