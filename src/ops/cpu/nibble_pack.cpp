#include "ops/cpu/nibble_pack.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/half.h"
#include "ops/cpu/nibble_memory.h"

namespace quatrain::ops {
namespace {

// |q - z| <= 255 in groups wider than 256 and |c| <= 128: INT32 holds sums over this many columns.
constexpr int64_t kWidestGroup = INT32_MAX / (255 * 128);

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

void check_planes(const NibblePlanes& planes) {
  constexpr int64_t most = int64_t{1} << 31;
  require(planes.rows > 0 && planes.columns > 0 && planes.rows < most && planes.columns < most,
          "nibble matrix: a shape of {} x {} cannot be packed", planes.rows, planes.columns);
  require(planes.weight_group >= 0 && planes.residual_block > 0,
          "nibble matrix: weight group {} and residual block {} must be positive", planes.weight_group,
          planes.residual_block);
  const auto wants = [](size_t has, int64_t wanted, const char* what) {
    require(has == static_cast<size_t>(wanted), "nibble matrix: {} has {} values, the shape needs {}", what,
            has, wanted);
  };
  wants(planes.hi.size(), planes.rows * ((planes.columns + 1) / 2), "hi");
  wants(planes.scale.size(), planes.rows * planes.groups(), "scale");
  if (!planes.bias.empty()) wants(planes.bias.size(), planes.rows, "bias");
  const auto blocks = static_cast<int64_t>(planes.residual_index.size());
  const int64_t all_blocks = planes.block_rows() * planes.block_columns();
  require(blocks <= all_blocks, "nibble matrix: {} residual blocks of {}", blocks, all_blocks);
  wants(planes.lo.size(), blocks * kResidualRows * ((planes.residual_block + 1) / 2), "lo");
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t block = planes.residual_index[b];
    require(block >= 0 && block < all_blocks && (b == 0 || block > planes.residual_index[b - 1]),
            "nibble matrix: residual block number {} at position {} is out of order or range", block, b);
  }
}

// Sorted by size each divides the next, or covers the row.
void check_nesting(const NibblePlanes& planes, int64_t weight_group, int64_t activation_group) {
  std::array<int64_t, 3> sizes = {weight_group, activation_group, planes.residual_block};
  std::sort(sizes.begin(), sizes.end());
  for (int i = 0; i + 1 < 3; ++i)
    require(sizes[i + 1] >= planes.columns || sizes[i + 1] % sizes[i] == 0,
            "nibble matrix: weight group {}, activation group {} and residual block {} do not nest over {} "
            "columns: sorted by size each must divide the next or cover the row",
            weight_group, activation_group, planes.residual_block, planes.columns);
}

// Nibbles [column, column + count) of a row of packed pairs, in bits 0..4 count; count <= 8.
uint32_t nibbles(const uint8_t* bytes, int64_t column, int64_t count) {
  uint32_t word = 0;
  if (column % 2 == 0 && count == 8) {
    std::memcpy(&word, bytes + column / 2, sizeof word);  // little-endian, as every ISA here
    return word;
  }
  for (int64_t i = 0; i < count; ++i) {
    const uint8_t byte = bytes[(column + i) / 2];
    word |= uint32_t{(column + i) % 2 == 0 ? byte & 15u : byte >> 4u} << (4 * i);
  }
  return word;
}

// The four nibbles of the low half word, one in the low half of each byte.
uint32_t spread(uint32_t word) {
  word = (word | word << 8) & 0x00FF00FF;
  return (word | word << 4) & 0x0F0F0F0F;
}

int32_t sum_of_nibbles(uint32_t word) {
  return static_cast<int32_t>((((word & 0x0F0F0F0F) + (word >> 4 & 0x0F0F0F0F)) * 0x01010101u) >> 24);
}

int32_t sum_of_signed_nibbles(uint32_t word) {
  return sum_of_nibbles(word ^ 0x88888888) - 64;
}

void store(uint8_t* to, uint32_t word) {
  std::memcpy(to, &word, sizeof word);
}

// Writes one panel's part of every stream.
class PanelPacker {
 public:
  PanelPacker(const NibblePlanes& planes, const NibblePanels& view, int64_t unit_columns)
      : planes_(planes), view_(view), unit_columns_(unit_columns) {}

  // `sums` gets S of every group, [groups, 32].
  void pack(int64_t panel, uint8_t* dense, uint8_t* residual, std::vector<int32_t>& sums) const {
    sums.assign(static_cast<size_t>(view_.groups * kPanelRows), 0);
    const uint8_t* flags = view_.flags + panel * view_.units;
    for (int64_t u = 0; u < view_.units; ++u) {
      const int64_t steps = u + 1 < view_.units ? view_.steps : view_.last_steps;
      std::array<int32_t, kPanelRows> sum{};
      const int halves = (flags[u] & 1) + (flags[u] >> 1);
      uint8_t* lo = residual;
      for (int half = 0; half < 2; ++half) {
        pack_hi(panel, u, half, steps, dense + half * kHalfBytes, sum.data() + half * kHalfRows);
        if ((flags[u] >> half & 1) == 0) continue;
        pack_lo(panel, u, half, steps, lo, halves * kHalfBytes, sum.data() + half * kHalfRows);
        lo += kHalfBytes;
      }
      residual += halves * steps * kHalfBytes;
      dense += steps * kStepBytes;
      for (int r = 0; r < kPanelRows; ++r) sums[u / view_.units_per_group * kPanelRows + r] += sum[r];
    }
  }

 private:
  int64_t columns_of_step(int64_t unit, int64_t step) const {
    const int64_t end = std::min((unit + 1) * unit_columns_, planes_.columns);
    return std::min<int64_t>(kStepColumns, end - unit * unit_columns_ - step * kStepColumns);
  }

  void pack_hi(int64_t panel, int64_t unit, int half, int64_t steps, uint8_t* to, int32_t* sum) const {
    const int64_t row_bytes = (planes_.columns + 1) / 2;
    const int64_t first = panel * kPanelRows + half * kHalfRows;
    const int64_t rows = std::clamp<int64_t>(planes_.rows - first, 0, kHalfRows);
    for (int64_t r = 0; r < rows; ++r) {
      const uint8_t* row = planes_.hi.data() + (first + r) * row_bytes;
      for (int64_t s = 0; s < steps; ++s) {
        const uint32_t word = nibbles(row, unit * unit_columns_ + s * kStepColumns, columns_of_step(unit, s));
        store(to + s * kStepBytes + 4 * r, spread(word & 0xFFFF) << 4 | spread(word >> 16));
        sum[r] += 16 * sum_of_signed_nibbles(word);
      }
    }
  }

  void pack_lo(int64_t panel, int64_t unit, int half, int64_t steps, uint8_t* to, int64_t step_bytes,
               int32_t* sum) const {
    const int64_t block_column = unit * unit_columns_ / planes_.residual_block;
    const int64_t block = (2 * panel + half) * planes_.block_columns() + block_column;
    const auto& index = planes_.residual_index;
    const auto found = std::lower_bound(index.begin(), index.end(), block);
    const int64_t row_bytes = (planes_.residual_block + 1) / 2;
    const uint8_t* rows = planes_.lo.data() + (found - index.begin()) * kResidualRows * row_bytes;
    const int64_t first = unit * unit_columns_ - block_column * planes_.residual_block;
    const int64_t count = std::clamp<int64_t>(planes_.rows - (2 * panel + half) * kHalfRows, 0, kHalfRows);
    for (int64_t r = 0; r < count; ++r)
      for (int64_t s = 0; s < steps; ++s) {
        const uint32_t word =
            nibbles(rows + r * row_bytes, first + s * kStepColumns, columns_of_step(unit, s));
        store(to + s * step_bytes + 4 * r, spread(word & 0xFFFF) | spread(word >> 16) << 4);
        sum[r] += sum_of_nibbles(word);
      }
  }

  const NibblePlanes& planes_;
  const NibblePanels& view_;
  const int64_t unit_columns_;
};

// W of a panel: the groups' sums [groups, 32] times their scales, in FP64 and rounded once.
void scaled_sums(const std::vector<int32_t>& sums, const uint16_t* scale, float* out) {
  std::array<double, kPanelRows> total{};
  for (size_t i = 0; i < sums.size(); ++i)
    total[i % kPanelRows] += static_cast<double>(fp16_to_float(scale[i])) * sums[i];
  for (int r = 0; r < kPanelRows; ++r) out[r] = static_cast<float>(total[r]);
}

}  // namespace

PackedNibbleMatrix::PackedNibbleMatrix(const NibblePlanes& planes, int64_t activation_group,
                                       ThreadPool& pool) {
  check_planes(planes);
  require(activation_group >= 0, "nibble matrix: activation group {} is negative", activation_group);
  rows_ = planes.rows;
  columns_ = planes.columns;
  const auto whole_row_if_zero = [&](int64_t group) {
    return group == 0 ? columns_ : std::min(group, columns_);
  };
  const int64_t weight_group = whole_row_if_zero(planes.weight_group);
  activation_group_ = whole_row_if_zero(activation_group);
  check_nesting(planes, weight_group, activation_group_);
  const int64_t group = std::min(weight_group, activation_group_);
  require(group <= kWidestGroup,
          "nibble matrix: sums over {} columns may overflow INT32; use groups of at most {} columns", group,
          kWidestGroup);
  unit_columns_ = std::min(group, planes.residual_block);

  NibblePanels& view = panels_;
  view.rows = rows_;
  view.panels = ceil_div(rows_, kPanelRows);
  view.units = ceil_div(columns_, unit_columns_);
  view.steps = ceil_div(unit_columns_, kStepColumns);
  view.last_steps = ceil_div(columns_ - (view.units - 1) * unit_columns_, kStepColumns);
  view.units_per_group = ceil_div(group, unit_columns_);
  view.groups = ceil_div(columns_, group);
  view.wide = group > kWidestFreeGroup;
  view.has_residual = !planes.residual_index.empty();
  view.scale_groups = weight_group < columns_ ? planes.groups() : 0;
  view.groups_per_scale = weight_group < columns_ ? weight_group / group : view.groups;
  const bool sums_of_rows =
      view.scale_groups > 1 && activation_group_ >= columns_ && columns_ > kWidestFreeGroup;
  groups_per_activation_ = activation_group_ < columns_ ? activation_group_ / group : view.groups;

  std::vector<uint8_t> flags(static_cast<size_t>(view.panels * view.units));
  for (const int32_t block : planes.residual_index) {
    const int64_t half_row = block / planes.block_columns();
    const int64_t first = block % planes.block_columns() * planes.residual_block;
    const int64_t end = std::min(first + planes.residual_block, columns_);
    for (int64_t u = first / unit_columns_; u < ceil_div(end, unit_columns_); ++u)
      flags[half_row / 2 * view.units + u] |= static_cast<uint8_t>(1 << (half_row % 2));
  }
  std::vector<int64_t> offsets(static_cast<size_t>(view.panels) + 1);
  for (int64_t p = 0; p < view.panels; ++p) {
    int64_t vectors = 0;
    for (int64_t u = 0; u < view.units; ++u) {
      const int halves = (flags[p * view.units + u] & 1) + (flags[p * view.units + u] >> 1);
      vectors += halves * (u + 1 < view.units ? view.steps : view.last_steps);
    }
    offsets[p + 1] = offsets[p] + vectors * kHalfBytes;
  }

  size_t total = 0;
  const auto section = [&](int64_t size) {
    const size_t at = total;
    total += (static_cast<size_t>(size) + 63) / 64 * 64;
    return at;
  };
  const int64_t padded_rows = view.panels * kPanelRows;
  const int64_t panel_bytes = view.total_steps() * kStepBytes;
  const size_t dense_at = section(view.panels * panel_bytes);
  const size_t residual_at = section(offsets.back());
  const size_t sums_at =
      section(sums_of_rows ? padded_rows * 4 : padded_rows * view.groups * (view.wide ? 4 : 2));
  const size_t scale_at = section(padded_rows * view.scale_groups * 2);
  bytes_ = static_cast<int64_t>(total);
  const size_t factor_at = section(padded_rows * 4);
  const size_t bias_at = section(padded_rows * 4);
  const size_t flags_at = section(view.panels * view.units);
  const size_t offset_at = section(view.panels * 8);
  bytes_ += padded_rows * 8 + view.panels * view.units;
  memory_ = allocate_packed(total);
  uint8_t* base = memory_.get();

  auto* sums = reinterpret_cast<int16_t*>(base + sums_at);
  auto* wide_sums = reinterpret_cast<int32_t*>(base + sums_at);
  auto* row_sums = reinterpret_cast<float*>(base + sums_at);
  auto* group_scale = reinterpret_cast<uint16_t*>(base + scale_at);
  auto* factor = reinterpret_cast<float*>(base + factor_at);
  auto* bias = reinterpret_cast<float*>(base + bias_at);
  std::memcpy(base + flags_at, flags.data(), flags.size());
  std::memcpy(base + offset_at, offsets.data(), static_cast<size_t>(view.panels) * 8);
  view.dense = base + dense_at;
  view.residual = base + residual_at;
  view.sums = sums;
  view.wide_sums = wide_sums;
  view.row_sums = sums_of_rows ? row_sums : nullptr;
  view.group_scale = group_scale;
  view.factor = factor;
  view.bias = bias;
  view.flags = base + flags_at;
  view.residual_offset = reinterpret_cast<const int64_t*>(base + offset_at);

  for (int64_t row = 0; row < rows_; ++row) {
    factor[row] = view.scale_groups > 0 ? 0.0625f : planes.scale[row] * 0.0625f;
    bias[row] = planes.bias.empty() ? 0.0f : planes.bias[row];
    for (int64_t g = 0; g < view.scale_groups; ++g) {
      const float scale = planes.scale[row * view.scale_groups + g];
      const uint16_t half = float_to_fp16(scale);
      require(fp16_to_float(half) == scale,
              "nibble matrix: the scale {} of row {}, group {} is not an FP16 value", scale, row, g);
      group_scale[(row / kPanelRows * view.scale_groups + g) * kPanelRows + row % kPanelRows] = half;
    }
  }
  const PanelPacker packer(planes, view, unit_columns_);
  pool.parallel_for(view.panels, 1, [&](int64_t begin, int64_t end, int) {
    std::vector<int32_t> of_panel;
    for (int64_t p = begin; p < end; ++p) {
      packer.pack(p, base + dense_at + p * panel_bytes, base + residual_at + offsets[p], of_panel);
      const int64_t at = p * view.groups * kPanelRows;
      if (sums_of_rows)
        scaled_sums(of_panel, group_scale + at, row_sums + p * kPanelRows);
      else if (view.wide)
        std::copy(of_panel.begin(), of_panel.end(), wide_sums + at);
      else
        std::transform(of_panel.begin(), of_panel.end(), sums + at,
                       [](int32_t sum) { return static_cast<int16_t>(sum); });
    }
  });
}

void PackedNibbleMatrix::row(int64_t row, float* out) const {
  const NibblePanels& view = panels_;
  const int64_t panel = row / kPanelRows, half = row % kPanelRows / kHalfRows, r = row % kHalfRows;
  const uint8_t* dense = view.dense + panel * view.total_steps() * kStepBytes + half * kHalfBytes + 4 * r;
  const uint8_t* residual = view.residual + view.residual_offset[panel];
  for (int64_t u = 0; u < view.units; ++u) {
    const int64_t steps = u + 1 < view.units ? view.steps : view.last_steps;
    const NibbleResidual lo = residual_of_unit(residual, view.flags[panel * view.units + u], steps);
    float scale = view.factor[row];
    if (view.scale_groups > 0) {
      const int64_t group = u / view.units_per_group / view.groups_per_scale;
      scale *= fp16_to_float(
          view.group_scale[(panel * view.scale_groups + group) * kPanelRows + row % kPanelRows]);
    }
    const int64_t first = u * unit_columns_, count = std::min(unit_columns_, columns_ - first);
    for (int64_t s = 0; s < steps; ++s, dense += kStepBytes) {
      const uint8_t* low = lo.lo[half] + s * lo.advance[half] + 4 * r;
      for (int64_t j = 0; j < std::min<int64_t>(kStepColumns, count - s * kStepColumns); ++j) {
        const uint8_t hi = j < 4 ? dense[j] & 0xF0 : static_cast<uint8_t>(dense[j - 4] << 4);
        const uint8_t nibble = j < 4 ? low[j] & 15 : low[j - 4] >> 4;
        out[first + s * kStepColumns + j] = scale * static_cast<float>(static_cast<int8_t>(hi | nibble));
      }
    }
  }
}

}  // namespace quatrain::ops
