#include <cuda_fp16.h>

#include <algorithm>

#include "ops/cuda/zipper_matrix.h"

namespace quatrain::ops {
namespace {

// The planes as they lie in the artifact, in GPU memory.
struct RawPlanes {
  const uint8_t* hi;
  const uint8_t* lo;
  const int32_t* block_of;  // [block rows, block columns]: number of the residual block, or -1
  const float* scale;
  int64_t rows, columns, residual_block, block_columns, weight_group, groups;

  __device__ int hi_nibble(int64_t row, int64_t column) const {
    if (row >= rows || column >= columns) return 0;
    const int byte = hi[row * ((columns + 1) / 2) + column / 2];
    return column % 2 == 0 ? byte & 15 : byte >> 4;
  }
  __device__ int lo_nibble(int64_t row, int64_t column) const {
    if (row >= rows || column >= columns) return 0;
    const int block = block_of[row / kResidualRows * block_columns + column / residual_block];
    if (block < 0) return 0;
    const int64_t within = column % residual_block;
    const int byte =
        lo[(static_cast<int64_t>(block) * kResidualRows + row % kResidualRows) * ((residual_block + 1) / 2) +
           within / 2];
    return within % 2 == 0 ? byte & 15 : byte >> 4;
  }
  __device__ int code(int64_t row, int64_t column) const {
    return ((hi_nibble(row, column) ^ 8) - 8) * 16 + lo_nibble(row, column);
  }
};

// Row within the strip and first column of word `word` of a lane; the word's low halves are 8 rows on.
__device__ int fragment_row(int lane) {
  return lane / 4;
}
__device__ int fragment_column(int lane, int word) {
  return word / 2 * 32 + word % 2 * 16 + lane % 4 * 4;
}

// One block of 256 threads a (tile, step), one warp a strip.
__global__ void pack_dense(RawPlanes planes, int steps, int drain, bool group_scales, uint8_t* chunks) {
  const int strip = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t row0 = static_cast<int64_t>(blockIdx.x / steps) * kTileRows + strip * kResidualRows;
  const int64_t column0 = static_cast<int64_t>(blockIdx.x % steps) * kStepColumns;
  uint8_t* out =
      chunks + (static_cast<int64_t>(blockIdx.x) * kStrips + strip) * strip_bytes(drain, group_scales);
  uint32_t words[8];
  for (int word = 0; word < 8; ++word) {
    words[word] = 0;
    const int64_t row = row0 + fragment_row(lane);
    for (int b = 0; b < 4; ++b) {
      const int64_t column = column0 + fragment_column(lane, word) + b;
      const uint32_t byte = planes.hi_nibble(row, column) << 4 | planes.hi_nibble(row + 8, column);
      words[word] |= byte << (8 * b);
    }
  }
  reinterpret_cast<uint4*>(out)[lane] = make_uint4(words[0], words[1], words[2], words[3]);
  reinterpret_cast<uint4*>(out)[32 + lane] = make_uint4(words[4], words[5], words[6], words[7]);

  const int drains = kStepColumns / drain;
  auto* scales = reinterpret_cast<__half*>(out + kBlockBytes);
  auto* sums = reinterpret_cast<int16_t*>(scales + (group_scales ? drains * 16 : 0));
  for (int i = lane; i < drains * 16; i += 32) {
    const int64_t row = row0 + i % 16, column = column0 + i / 16 * drain;
    int sum = 0;
    for (int k = 0; k < drain; ++k) sum += planes.code(row, column + k);
    sums[i] = static_cast<int16_t>(sum);
    if (!group_scales) continue;
    const bool inside = row < planes.rows && column < planes.columns;
    const float grouped = inside ? planes.scale[row * planes.groups + column / planes.weight_group] : 0.0f;
    scales[i] = __float2half(planes.groups == 1 ? 1.0f : grouped);
  }
}

// One warp a kernel block; `places` holds strip * steps + step of each.
__global__ void pack_residual(RawPlanes planes, int steps, const int* places, uint8_t* residual) {
  const int64_t row =
      static_cast<int64_t>(places[blockIdx.x] / steps) * kResidualRows + fragment_row(threadIdx.x);
  const int64_t column0 = static_cast<int64_t>(places[blockIdx.x] % steps) * kStepColumns;
  uint32_t words[8];
  for (int word = 0; word < 8; ++word) {
    words[word] = 0;
    for (int b = 0; b < 4; ++b) {
      const int64_t column = column0 + fragment_column(threadIdx.x, word) + b;
      const uint32_t byte = planes.lo_nibble(row, column) | planes.lo_nibble(row + 8, column) << 4;
      words[word] |= byte << (8 * b);
    }
  }
  auto* out =
      reinterpret_cast<uint4*>(residual + static_cast<int64_t>(blockIdx.x) * kBlockBytes) + threadIdx.x;
  out[0] = make_uint4(words[0], words[1], words[2], words[3]);
  out[32] = make_uint4(words[4], words[5], words[6], words[7]);
}

// The widest drain that no group's edge cuts.
int drain_columns(const NibblePlanes& planes, int64_t activation_group) {
  int drain = kStepColumns;
  for (const int64_t group : {planes.weight_group, activation_group}) {
    if (group == 0 || group >= planes.columns || group % kStepColumns == 0) continue;
    require(group == 32 || group == 64,
            "zipper GEMM: groups of {} columns in a row of {} (weights {}, activations {}); it takes 32, 64, "
            "multiples of "
            "128, or the whole row",
            group, planes.columns, planes.weight_group, activation_group);
    drain = std::min(drain, static_cast<int>(group));
  }
  return drain;
}

// The vectors of the planes must have the sizes that their shape says.
const NibblePlanes& checked(const NibblePlanes& planes) {
  require(planes.rows > 0 && planes.columns > 0 && planes.rows < (int64_t{1} << 31) / kStepColumns &&
              planes.columns < (int64_t{1} << 31) / kStepColumns,
          "zipper GEMM: a weight matrix of {} x {}", planes.rows, planes.columns);
  require(planes.residual_block > 0 && planes.weight_group >= 0,
          "zipper GEMM: residual blocks of {} columns, weight groups of {}", planes.residual_block,
          planes.weight_group);
  const auto expect = [&](const char* what, size_t size, int64_t expected) {
    require(size == static_cast<size_t>(expected), "zipper GEMM: {} {} of a {} x {} matrix, not {}", size,
            what, planes.rows, planes.columns, expected);
  };
  expect("bytes of hi nibbles", planes.hi.size(), planes.rows * ((planes.columns + 1) / 2));
  expect("scales", planes.scale.size(), planes.rows * planes.groups());
  expect(
      "bytes of lo nibbles", planes.lo.size(),
      static_cast<int64_t>(planes.residual_index.size()) * kResidualRows * ((planes.residual_block + 1) / 2));
  if (!planes.bias.empty()) expect("biases", planes.bias.size(), planes.rows);
  return planes;
}

}  // namespace

ZipperMatrix::ZipperMatrix(const NibblePlanes& planes, int64_t activation_group)
    : rows(checked(planes).rows),
      columns(planes.columns),
      tiles((planes.rows + kTileRows - 1) / kTileRows),
      steps((planes.columns + kStepColumns - 1) / kStepColumns),
      activation_group(activation_group == 0 || activation_group > planes.columns ? planes.columns
                                                                                  : activation_group),
      drain(drain_columns(planes, activation_group)),
      group_scales(planes.groups() > 1 || drain < kStepColumns) {
  chunk_bytes = kStrips * strip_bytes(drain, group_scales);

  // Where the residual blocks of the file lie, and which 16 x 128 kernel blocks they touch.
  const int64_t block_columns = planes.block_columns();
  std::vector<int32_t> block_of(static_cast<size_t>(planes.block_rows() * block_columns), -1);
  std::vector<uint8_t> present(static_cast<size_t>(tiles * 8 * steps));
  for (size_t i = 0; i < planes.residual_index.size(); ++i) {
    const int64_t block = planes.residual_index[i];
    require(block >= 0 && block < static_cast<int64_t>(block_of.size()),
            "zipper GEMM: residual block {} of a matrix with {}", block, block_of.size());
    block_of[static_cast<size_t>(block)] = static_cast<int32_t>(i);
    const int64_t first = block % block_columns * planes.residual_block;
    const int64_t last = std::min(first + planes.residual_block, columns) - 1;
    for (int64_t step = first / kStepColumns; step <= last / kStepColumns; ++step)
      present[static_cast<size_t>(block / block_columns * steps + step)] = 1;
  }
  std::vector<uint32_t> table(static_cast<size_t>(tiles * steps));
  std::vector<int> places;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    for (int64_t step = 0; step < steps; ++step) {
      require(places.size() < (size_t{1} << 24), "zipper GEMM: more than 2^24 residual blocks in one matrix");
      uint32_t entry = static_cast<uint32_t>(places.size()) << 8;
      for (int64_t strip = 0; strip < 8; ++strip) {
        const int64_t place = (tile * 8 + strip) * steps + step;
        if (!present[static_cast<size_t>(place)]) continue;
        entry |= 1u << strip;
        places.push_back(static_cast<int>(place));
      }
      table[static_cast<size_t>(tile * steps + step)] = entry;
    }
  }
  residual_blocks = static_cast<int64_t>(places.size());

  const DeviceBuffer<uint8_t> hi(planes.hi.data(), planes.hi.size());
  const DeviceBuffer<uint8_t> lo(planes.lo.data(), planes.lo.size());
  const DeviceBuffer<int32_t> map(block_of.data(), block_of.size());
  const DeviceBuffer<float> scale(planes.scale.data(), planes.scale.size());
  const DeviceBuffer<int> where(places.data(), places.size());
  const RawPlanes raw{hi.data(),
                      lo.data(),
                      map.data(),
                      scale.data(),
                      rows,
                      columns,
                      planes.residual_block,
                      block_columns,
                      planes.weight_group == 0 ? columns : planes.weight_group,
                      planes.groups()};
  blocks = DeviceBuffer<uint32_t>(table.data(), table.size());
  chunks = DeviceBuffer<uint8_t>(static_cast<size_t>(tiles * steps * chunk_bytes));
  residual = DeviceBuffer<uint8_t>(static_cast<size_t>(residual_blocks * kBlockBytes));
  pack_dense<<<static_cast<unsigned>(tiles * steps), 256>>>(raw, static_cast<int>(steps), drain, group_scales,
                                                            chunks.data());
  cuda_check(cudaGetLastError(), "pack_dense");
  if (residual_blocks > 0) {
    pack_residual<<<static_cast<unsigned>(residual_blocks), 32>>>(raw, static_cast<int>(steps), where.data(),
                                                                  residual.data());
    cuda_check(cudaGetLastError(), "pack_residual");
  }
  std::vector<float> scales(static_cast<size_t>(tiles * kTileRows), 0.0f);
  for (int64_t row = 0; row < rows; ++row)
    scales[static_cast<size_t>(row)] =
        planes.groups() > 1 ? 0.0625f : planes.scale[static_cast<size_t>(row)] * 0.0625f;
  row_scale = DeviceBuffer<float>(scales.data(), scales.size());
  if (!planes.bias.empty()) {
    bias = DeviceBuffer<float>(scales.size());
    bias.upload(planes.bias.data(), planes.bias.size());
  }
  cuda_check(cudaDeviceSynchronize(), "repacking weights");
}

}  // namespace quatrain::ops
