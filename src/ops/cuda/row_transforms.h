// Online transforms of FP32 rows in GPU memory, in place, where the quantisers do not take them along.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/cuda/device_buffer.h"

namespace quatrain::ops {

/// x <- x D H / sqrt(order) in every block of `order` columns, any order that ops/hadamard.h takes, up to
/// 32,768 (a block lies in shared memory).
class DeviceHadamard {
 public:
  /// Over `width` columns; `repeats` such vectors stand side by side in a row (heads).
  DeviceHadamard(int64_t width, int64_t order, uint64_t seed, bool offset, int64_t repeats = 1);
  void apply(float* x, int64_t rows, int64_t stride, cudaStream_t stream) const;
  int64_t order() const { return order_; }
  /// Whether H is Sylvester's, so that a quantiser with gain D can do the rest.
  bool power_of_two() const { return base_ == 1; }
  /// D [width], without the factor, on the host.
  const std::vector<float>& signs() const { return host_signs_; }

 private:
  int64_t width_, order_, repeats_, base_ = 1, inner_ = 1;
  std::vector<float> host_signs_;
  DeviceBuffer<float> signs_;   // D / sqrt(order)
  DeviceBuffer<float> matrix_;  // [base, base]
};

/// x_b <- (x_b - c_b) A_b: ops/block_transform.h. Orders up to 1,024.
class DeviceBlockTransform {
 public:
  DeviceBlockTransform(int64_t order, std::span<const float> values, std::span<const int32_t> matrix_of_block,
                       std::span<const float> offset);
  void apply(float* x, int64_t rows, int64_t stride, cudaStream_t stream) const;

 private:
  int64_t order_, blocks_;
  DeviceBuffer<float> values_;
  DeviceBuffer<int32_t> matrix_of_block_;
  DeviceBuffer<float> offset_;
};

}  // namespace quatrain::ops
