// Row-wise steps of a forward pass in FP32 that no kernel with codes at its end takes along.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "base/number_format.h"
#include "ops/cuda/device_buffer.h"

namespace quatrain::ops {

/// y = x / sqrt(mean(x^2) + epsilon) * gain of rows of FP32 that lie side by side, as FP32 or BF16; y may be
/// x. With `add` and `sum`, x + add is stored in sum first and normed (sum may be x). `bad`, where given,
/// takes the smallest row * width + column of a value that is not finite, or the row's last column where only
/// the mean square is not; set it to ~0 before.
template <typename Out>
void rms_norm_rows(const float* x, const float* add, float* sum, int64_t rows, int64_t width,
                   const float* gain, float epsilon, Out* y, unsigned long long* bad, cudaStream_t stream);

/// y = SiLU(gate) * up, or GELU in its tanh form; a row of x holds `width` gates, then as many ups.
template <typename Out>
void gate_rows(const float* x, int64_t rows, int64_t width, bool gelu, Out* y, cudaStream_t stream);

/// x += y, `count` values.
void add_values(float* x, const float* y, int64_t count, cudaStream_t stream);
/// y[row, column] += bias[column].
void add_bias(float* y, int64_t rows, int64_t width, int64_t stride, const float* bias, cudaStream_t stream);
/// BF16 or FP32 copies of FP32 rows, `stride` floats apart, side by side.
template <typename Out>
void copy_rows(const float* x, int64_t rows, int64_t width, int64_t stride, Out* y, cudaStream_t stream);
/// y[i] = x[index[i]].
void gather_rows(const float* x, const int32_t* index, int64_t rows, int64_t width, float* y,
                 cudaStream_t stream);
/// y[index[i]] += weight[i] * x[i]; no index stands twice.
void scatter_add_rows(const float* x, const int32_t* index, const float* weight, int64_t rows, int64_t width,
                      float* y, cudaStream_t stream);
/// What blocks that share a row tell each other. Calls that use it must not overlap.
struct ArgmaxWorkspace {
  explicit ArgmaxWorkspace(int64_t rows);
  DeviceBuffer<unsigned long long> keys;
  DeviceBuffer<int> arrived;
};
/// out[i] = the first column of the largest of x [rows, width].
void argmax_rows(const float* x, int64_t rows, int64_t width, ArgmaxWorkspace& workspace, int32_t* out,
                 cudaStream_t stream);

/// Greedy decoding's step between two passes: history[*step * rows + i] = tokens[i], lengths[i] += 1, *step
/// += 1.
void advance_sequences(const int32_t* tokens, int32_t* lengths, int64_t rows, int32_t* history, int32_t* step,
                       cudaStream_t stream);

/// Rows of an embedding in GPU memory: FP32 or BF16, or nibble planes as they lie in the artifact.
class DeviceEmbedding {
 public:
  DeviceEmbedding() = default;
  explicit DeviceEmbedding(const NibblePlanes& planes);
  /// Of a matrix [rows, columns] that somebody else owns: a tied head, say.
  DeviceEmbedding(const void* values, bool bf16, int64_t rows, int64_t columns);

  /// out[i] = scale * row tokens[i], side by side.
  void look_up(const int32_t* tokens, int64_t count, float scale, float* out, cudaStream_t stream) const;
  int64_t row_bytes() const;

 private:
  int64_t rows_ = 0, columns_ = 0, residual_block_ = 0, block_columns_ = 0, weight_group_ = 0, groups_ = 0;
  const void* values_ = nullptr;
  bool bf16_ = false;
  DeviceBuffer<uint8_t> hi_, lo_;
  DeviceBuffer<int32_t> block_of_;
  DeviceBuffer<float> scale_;
};

}  // namespace quatrain::ops
