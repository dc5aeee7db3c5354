#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>

#include "ops/cuda/dense_gemm.h"
#include "ops/cuda/row_ops.h"

namespace quatrain::ops {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;  // what cuBLAS recommends for Hopper
constexpr int64_t kGrainValues = int64_t{1} << 18;    // converted by one thread
constexpr int64_t kUploadValues = int64_t{32} << 20;  // converted at a time

void cublas_check(cublasStatus_t code, const char* operation) {
  require(code == CUBLAS_STATUS_SUCCESS, "cuBLAS: {} failed: {}", operation, cublasGetStatusString(code));
}

}  // namespace

CublasHandle::CublasHandle(cudaStream_t stream) : workspace_(kWorkspaceBytes) {
  cublas_check(cublasCreate(&handle_), "cublasCreate");
  cublas_check(cublasSetStream(handle_, stream), "cublasSetStream");
  cublas_check(cublasSetWorkspace(handle_, workspace_.data(), kWorkspaceBytes), "cublasSetWorkspace");
}

CublasHandle::~CublasHandle() {
  if (handle_ != nullptr) cublasDestroy(handle_);
}

DenseDeviceMatrix::DenseDeviceMatrix(int64_t rows, int64_t columns,
                                     const std::function<void(int64_t begin, int64_t end, float* out)>& read,
                                     const std::vector<float>& bias, ThreadPool& pool)
    : rows_(rows), columns_(columns) {
  require(rows > 0 && columns > 0, "a weight matrix of {} x {} has no elements", rows, columns);
  const int64_t step = std::clamp<int64_t>(kUploadValues / columns, 1, rows);
  const int64_t grain = std::clamp<int64_t>(kGrainValues / columns, 1, step);
  std::vector<float> values(static_cast<size_t>(step * columns));
  std::vector<uint16_t> halves(values.size());
  half_ = DeviceBuffer<__nv_bfloat16>(static_cast<size_t>(rows * columns));
  std::atomic<bool> exact = true;
  for (int64_t begin = 0; begin < rows && exact; begin += step) {
    const int64_t count = std::min(step, rows - begin);
    pool.parallel_for(count, grain, [&](int64_t from, int64_t to, int) {
      read(begin + from, begin + to, values.data() + from * columns);
      uint32_t rest = 0;
      for (int64_t i = from * columns; i < to * columns; ++i) {
        const auto bits = std::bit_cast<uint32_t>(values[static_cast<size_t>(i)]);
        rest |= bits & 0xFFFF;
        halves[static_cast<size_t>(i)] = static_cast<uint16_t>(bits >> 16);
      }
      if (rest != 0) exact = false;
    });
    cuda_check(cudaMemcpy(half_.data() + begin * columns, halves.data(),
                          static_cast<size_t>(count * columns) * 2, cudaMemcpyHostToDevice),
               "copy of a weight matrix");
  }
  if (!exact) {
    half_ = {};
    full_ = DeviceBuffer<float>(static_cast<size_t>(rows * columns));
    for (int64_t begin = 0; begin < rows; begin += step) {
      const int64_t count = std::min(step, rows - begin);
      pool.parallel_for(count, grain, [&](int64_t from, int64_t to, int) {
        read(begin + from, begin + to, values.data() + from * columns);
      });
      cuda_check(cudaMemcpy(full_.data() + begin * columns, values.data(),
                            static_cast<size_t>(count * columns) * 4, cudaMemcpyHostToDevice),
                 "copy of a weight matrix");
    }
  }
  if (!bias.empty()) bias_ = DeviceBuffer<float>(bias.data(), bias.size());
}

void DenseDeviceMatrix::multiply(const CublasHandle& cublas, const void* x, int64_t tokens, float* y,
                                 int64_t stride, cudaStream_t stream, bool invariant) const {
  if (tokens == 0) return;
  const float one = 1, zero = 0;
  const cudaDataType_t type = bf16() ? CUDA_R_16BF : CUDA_R_32F;
  const int64_t value_bytes = bf16() ? 2 : 4;
  const auto product = [&](int64_t first, int64_t count) {
    const auto* from = static_cast<const std::byte*>(x) + first * columns_ * value_bytes;
    cublas_check(
        cublasGemmEx(cublas.get(), CUBLAS_OP_T, CUBLAS_OP_N, static_cast<int>(rows_), static_cast<int>(count),
                     static_cast<int>(columns_), &one, data(), type, static_cast<int>(columns_), from, type,
                     static_cast<int>(columns_), &zero, y + first * stride, CUDA_R_32F,
                     static_cast<int>(stride), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        "cublasGemmEx");
  };
  if (!invariant) {
    product(0, tokens);
  } else {
    // The last piece reaches back over tokens that are done, which come out the same again.
    for (int64_t first = 0; first < tokens; first += kInvariantTokens)
      product(std::clamp<int64_t>(tokens - kInvariantTokens, 0, first), kInvariantTokens);
  }
  if (bias_.size() > 0) add_bias(y, tokens, rows_, stride, bias_.data(), stream);
}

}  // namespace quatrain::ops
