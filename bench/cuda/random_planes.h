// Random nibble planes of the linears of Llama-3-8B, for timing.
#pragma once

#include <cstring>
#include <random>
#include <vector>

#include "base/number_format.h"

namespace quatrain::bench {

struct Linear {
  const char* name;
  int64_t rows, columns;
};
inline constexpr Linear kLlama3Linears[] = {
    {"qkv", 6144, 4096}, {"o", 4096, 4096}, {"gate_up", 28672, 4096}, {"down", 4096, 14336}};

/// Scales a group of weights (0: a row); `percent` of the blocks have lo nibbles.
inline NibblePlanes random_planes(const Linear& linear, int64_t weight_group, int percent) {
  NibblePlanes planes;
  planes.rows = linear.rows;
  planes.columns = linear.columns;
  planes.weight_group = weight_group;
  std::mt19937_64 random(static_cast<uint64_t>(linear.rows + percent));
  const auto fill = [&](std::vector<uint8_t>& bytes) {
    for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
      const uint64_t value = random();
      std::memcpy(bytes.data() + i, &value, 8);
    }
  };
  planes.hi.resize(static_cast<size_t>(linear.rows * linear.columns / 2));
  fill(planes.hi);
  planes.scale.resize(static_cast<size_t>(linear.rows * planes.groups()));
  for (float& scale : planes.scale) scale = static_cast<float>(1 + random() % 7) / 512;
  const int64_t blocks = planes.block_rows() * planes.block_columns();
  for (int64_t block = 0; block < blocks; ++block)
    if (static_cast<int>(random() % 100) < percent)
      planes.residual_index.push_back(static_cast<int32_t>(block));
  planes.lo.resize(planes.residual_index.size() * 1024);
  fill(planes.lo);
  return planes;
}

}  // namespace quatrain::bench
