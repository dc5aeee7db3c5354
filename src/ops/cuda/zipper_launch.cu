#include "ops/cuda/zipper_launch.h"
#include "ops/cuda/zipper_matrix.h"

namespace quatrain::ops::zipper {

CUtensorMap byte_map(const void* data, int64_t row_bytes, int64_t rows, int box) {
  using Encode = decltype(&cuTensorMapEncodeTiled);
  static const Encode encode = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found;
    cuda_check(
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found),
        "cuTensorMapEncodeTiled");
    require(found == cudaDriverEntryPointSuccess,
            "CUDA: the driver has no cuTensorMapEncodeTiled; it must support CUDA 12");
    return reinterpret_cast<Encode>(entry);
  }();
  CUtensorMap map;
  const cuuint64_t extent[2] = {static_cast<cuuint64_t>(row_bytes), static_cast<cuuint64_t>(rows)};
  const cuuint64_t pitch[1] = {static_cast<cuuint64_t>(row_bytes)};
  const cuuint32_t shape[2] = {kStepColumns, static_cast<cuuint32_t>(box)};
  const cuuint32_t step[2] = {1, 1};
  const CUresult code = encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<void*>(data), extent, pitch,
                               shape, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  require(code == CUDA_SUCCESS, "CUDA: no tensor map for {} rows of {} bytes (error {})", rows, row_bytes,
          static_cast<int>(code));
  return map;
}

}  // namespace quatrain::ops::zipper
