// Random nibble planes and activation codes, and the slow reference that the CUDA tests compare with.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "base/half.h"
#include "base/number_format.h"
#include "ops/cuda/device_activations.h"

namespace quatrain::test {

enum class Presence { None, All, Random, Corner };

inline std::vector<float> random_normals(int64_t size, float mean, float deviation, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(mean, deviation);
  std::vector<float> x(static_cast<size_t>(size));
  for (float& value : x) value = normal(random);
  return x;
}

inline NibblePlanes random_planes(int64_t rows, int64_t columns, int64_t weight_group, int64_t residual_block,
                                  Presence presence, uint64_t seed, bool bias = false) {
  std::mt19937_64 random(seed);
  NibblePlanes planes;
  planes.rows = rows;
  planes.columns = columns;
  planes.weight_group = weight_group;
  planes.residual_block = residual_block;
  planes.hi.resize(static_cast<size_t>(rows * ((columns + 1) / 2)));
  for (uint8_t& byte : planes.hi) byte = static_cast<uint8_t>(random());
  std::uniform_real_distribution<float> scale(0.01f, 0.05f);
  planes.scale.resize(static_cast<size_t>(rows * planes.groups()));
  for (float& s : planes.scale)
    s = weight_group > 0 ? fp16_to_float(float_to_fp16(scale(random))) : scale(random);
  const int64_t blocks = planes.block_rows() * planes.block_columns();
  for (int64_t block = 0; block < blocks; ++block) {
    const bool in = presence == Presence::All || (presence == Presence::Random && random() % 4 == 0) ||
                    (presence == Presence::Corner && block == blocks - 1);
    if (!in) continue;
    planes.residual_index.push_back(static_cast<int32_t>(block));
    const int64_t row0 = block / planes.block_columns() * kResidualRows;
    const int64_t column0 = block % planes.block_columns() * residual_block;
    for (int64_t row = 0; row < kResidualRows; ++row)
      for (int64_t pair = 0; pair < (residual_block + 1) / 2; ++pair) {
        uint8_t byte = static_cast<uint8_t>(random());
        if (row0 + row >= rows || column0 + 2 * pair >= columns) byte = 0;
        if (column0 + 2 * pair + 1 >= columns) byte &= 15;
        planes.lo.push_back(byte);
      }
  }
  if (bias) {
    std::normal_distribution<float> normal;
    for (int64_t row = 0; row < rows; ++row) planes.bias.push_back(normal(random));
  }
  return planes;
}

/// Codes [tokens, width], scales and zeros [tokens, groups] on the host.
struct HostActivations {
  int64_t tokens, width, group, groups;
  int bits;
  std::vector<uint8_t> codes;
  std::vector<float> scale;
  std::vector<int> zero;

  void upload(ops::DeviceActivations& to) const {
    to.tokens = tokens;
    std::vector<int8_t> shifted(to.codes.size());
    std::vector<float> scales(to.scale.size());
    std::vector<int32_t> zeros(to.zero.size());
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t g = 0; g < groups; ++g) {
        const int z = zero[static_cast<size_t>(t * groups + g)], shift = ops::shift_of(z, bits);
        for (int64_t k = g * group; k < std::min((g + 1) * group, width); ++k)
          shifted[static_cast<size_t>(t * to.stride + k)] =
              static_cast<int8_t>(codes[static_cast<size_t>(t * width + k)] - shift);
        scales[static_cast<size_t>(g * to.token_stride + t)] = scale[static_cast<size_t>(t * groups + g)];
        zeros[static_cast<size_t>(g * to.token_stride + t)] = z - shift;
      }
    to.codes.upload(shifted.data(), shifted.size());
    to.scale.upload(scales.data(), scales.size());
    to.zero.upload(zeros.data(), zeros.size());
  }
};

/// Zeros are within the codes' range, or anywhere up to +-zero_span where that is positive.
inline HostActivations random_activations(int64_t tokens, int64_t width, int64_t group, int bits,
                                          int zero_span, uint64_t seed) {
  std::mt19937_64 random(seed);
  HostActivations x{tokens, width, group == 0 || group > width ? width : group, 0, bits, {}, {}, {}};
  x.groups = (width + x.group - 1) / x.group;
  for (int64_t i = 0; i < tokens * width; ++i)
    x.codes.push_back(static_cast<uint8_t>(random() & ((1u << bits) - 1)));
  std::uniform_real_distribution<float> scale(0.01f, 0.1f);
  for (int64_t i = 0; i < tokens * x.groups; ++i) {
    x.scale.push_back(scale(random));
    const int within = static_cast<int>(random() % (1u << bits));
    const int anywhere = static_cast<int>(random() % static_cast<unsigned>(2 * zero_span + 1)) - zero_span;
    const int extreme = random() % 2 == 0 ? zero_span : -zero_span;
    x.zero.push_back(zero_span == 0 || random() % 3 == 0 ? within : random() % 2 == 0 ? anywhere : extreme);
  }
  return x;
}

}  // namespace quatrain::test
