#include "quant/weights/planes.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"

namespace quatrain {
namespace {

int64_t row_bytes(const NibblePlanes& planes) {
  return (planes.columns + 1) / 2;
}
int64_t lo_row_bytes(const NibblePlanes& planes) {
  return (planes.residual_block + 1) / 2;
}

// Calls body(first column, end column, bytes of the low nibbles or nullptr) for each block of a row.
template <typename Body>
void for_each_block(NibblePlanes& planes, int64_t row, Body body) {
  const int64_t blocks = planes.block_columns();
  const auto first = static_cast<int32_t>(row / kResidualRows * blocks);
  auto next = std::lower_bound(planes.residual_index.begin(), planes.residual_index.end(), first);
  for (int64_t block = 0; block < blocks; ++block) {
    uint8_t* lo = nullptr;
    if (next != planes.residual_index.end() && *next == first + block) {
      const int64_t position = next - planes.residual_index.begin();
      lo = planes.lo.data() + (position * kResidualRows + row % kResidualRows) * lo_row_bytes(planes);
      ++next;
    }
    const int64_t begin = block * planes.residual_block;
    body(begin, std::min(begin + planes.residual_block, planes.columns), lo);
  }
}

void put_nibble(uint8_t* bytes, int64_t column, int nibble) {
  const int shift = column % 2 == 0 ? 0 : 4;
  uint8_t& byte = bytes[column / 2];
  byte = static_cast<uint8_t>((byte & (0xF0 >> shift)) | ((nibble & 15) << shift));
}

void put_code(NibblePlanes& planes, int64_t row, int64_t column, int64_t in_block, uint8_t* lo, int code) {
  put_nibble(planes.hi.data() + row * row_bytes(planes), column, code >> 4);
  if (lo != nullptr) put_nibble(lo, in_block, code & 15);
}

}  // namespace

NibblePlanes make_planes(int64_t rows, int64_t columns, int64_t weight_group, int64_t residual_block,
                         std::vector<int32_t> selected) {
  NibblePlanes planes;
  planes.rows = rows;
  planes.columns = columns;
  planes.weight_group = weight_group;
  planes.residual_block = residual_block;
  planes.hi.resize(static_cast<size_t>(rows * row_bytes(planes)));
  planes.scale.assign(static_cast<size_t>(rows * planes.groups()), 1.0f);
  planes.lo.resize(selected.size() * static_cast<size_t>(kResidualRows * lo_row_bytes(planes)));
  planes.residual_index = std::move(selected);
  return planes;
}

std::vector<int32_t> all_blocks(int64_t rows, int64_t columns, int64_t residual_block) {
  const int64_t count =
      (rows + kResidualRows - 1) / kResidualRows * ((columns + residual_block - 1) / residual_block);
  require(count <= std::numeric_limits<int32_t>::max(), "a matrix of {} x {} has too many residual blocks",
          rows, columns);
  std::vector<int32_t> blocks(static_cast<size_t>(count));
  std::iota(blocks.begin(), blocks.end(), 0);
  return blocks;
}

double store_row(NibblePlanes& planes, int64_t row, std::span<const float> weights) {
  const float* scales = planes.scale.data() + row * planes.groups();
  const int64_t group = planes.weight_group == 0 ? planes.columns : planes.weight_group;
  double error = 0;
  for_each_block(planes, row, [&](int64_t begin, int64_t end, uint8_t* lo) {
    for (int64_t column = begin; column < end; ++column) {
      const float scale = scales[column / group];
      const float weight = weights[static_cast<size_t>(column)];
      const float steps = weight / scale;
      // A scale that was clipped from below (a tiny row) keeps |steps| <= 8; a hostile one meets the clamp.
      const int code = lo != nullptr ? static_cast<int>(std::clamp(std::rint(16.0f * steps), -128.0f, 127.0f))
                                     : 16 * static_cast<int>(std::clamp(std::rint(steps), -8.0f, 7.0f));
      put_code(planes, row, column, column - begin, lo, code);
      const double difference = static_cast<double>(scale) * code * 0.0625 - weight;
      error += difference * difference;
    }
  });
  return error;
}

NibblePlanes slice_rows(const NibblePlanes& planes, int64_t begin, int64_t end) {
  require(begin % kResidualRows == 0 && (end % kResidualRows == 0 || end == planes.rows),
          "rows {} to {} cut a residual block", begin, end);
  const auto first = static_cast<int32_t>(begin / kResidualRows * planes.block_columns());
  const auto last = static_cast<int32_t>((end + kResidualRows - 1) / kResidualRows * planes.block_columns());
  const auto& index = planes.residual_index;
  const auto from = std::lower_bound(index.begin(), index.end(), first),
             to = std::lower_bound(from, index.end(), last);
  NibblePlanes part = make_planes(end - begin, planes.columns, planes.weight_group, planes.residual_block,
                                  std::vector<int32_t>(from, to));
  for (int32_t& block : part.residual_index) block -= first;
  std::copy_n(planes.hi.begin() + begin * row_bytes(planes), part.hi.size(), part.hi.begin());
  std::copy_n(planes.scale.begin() + begin * planes.groups(), part.scale.size(), part.scale.begin());
  std::copy_n(planes.lo.begin() + (from - index.begin()) * kResidualRows * lo_row_bytes(planes),
              part.lo.size(), part.lo.begin());
  return part;
}

void store_codes(NibblePlanes& planes, int64_t row, std::span<const int> codes) {
  for_each_block(planes, row, [&](int64_t begin, int64_t end, uint8_t* lo) {
    for (int64_t column = begin; column < end; ++column)
      put_code(planes, row, column, column - begin, lo, codes[static_cast<size_t>(column)]);
  });
}

}  // namespace quatrain
