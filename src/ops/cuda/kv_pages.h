// The KV cache in GPU memory: pages of 64 tokens, how keys and values are written, and attention over them.
//
// A page holds 64 tokens of every layer. One layer's part is, head after head: keys [64][token_bytes], values
// [64][token_bytes], then, below 16 bits, of keys and of values [64][groups] pairs of FP16 scale and int16
// zero. 4-bit codes lie two a byte (column 2k in the low half of byte k), 8-bit codes one a byte; 16 bits are
// FP16. x = scale * (code - zero), as kv_group() of ops/kv_cache.h defines them.
#pragma once

#include "ops/cuda/device_buffer.h"

namespace quatrain::ops {

inline constexpr int kKvPageTokens = 64;

struct DeviceKvLayout {
  int kv_heads = 0;
  int head_dim = 0;  // even, up to 256
  int bits = 4;      // 4, 8, or 16: FP16 without scales
  int group = 0;     // columns that share a scale, even; 0: the head
  bool symmetric = false;
  int64_t offset = 0;      // bytes of this layer's part from the start of a page
  int64_t page_bytes = 0;  // of a page of all layers; 0: this layer is the only one

  __host__ __device__ int group_columns() const { return group == 0 || group > head_dim ? head_dim : group; }
  __host__ __device__ int groups() const { return (head_dim + group_columns() - 1) / group_columns(); }
  __host__ __device__ int token_bytes() const { return head_dim * bits / 8; }
  __host__ __device__ int64_t codes_bytes() const { return int64_t{kKvPageTokens} * token_bytes(); }
  __host__ __device__ int64_t head_bytes() const {
    return 2 * codes_bytes() + (bits == 16 ? 0 : int64_t{2} * kKvPageTokens * groups() * 4);
  }
  /// Bytes of one layer's part of a page.
  __host__ __device__ int64_t bytes() const { return head_bytes() * kv_heads; }
  __host__ __device__ int64_t page_stride() const { return page_bytes == 0 ? bytes() : page_bytes; }
  __host__ __device__ int64_t at(int page, int head) const {
    return page * page_stride() + offset + head * head_bytes();
  }
};

/// Tokens of a batch, in GPU memory: row i is token lengths[i] - 1 of the sequence whose pages stand in row
/// sequence_of[i] (or i) of page_table [sequences, max_pages].
struct KvRows {
  int rows = 0;
  int max_pages = 0;
  const int32_t* page_table = nullptr;
  const int32_t* lengths = nullptr;
  const int32_t* sequence_of = nullptr;

  __device__ const int32_t* pages_of(int row) const {
    return page_table + int64_t{sequence_of == nullptr ? row : sequence_of[row]} * max_pages;
  }
};

/// Throws unless append and attention take the layout.
void check_kv_layout(const DeviceKvLayout& layout);

/// Stores the key and value of every row and head, BF16 or FP32 [rows, kv_heads, head_dim], rows `stride`
/// elements apart. `bad`, where given, takes the atomicMin of row * kv_heads + head of values that are not
/// finite or too large for an FP16 scale.
template <typename T>
void kv_append(const DeviceKvLayout& layout, uint8_t* pages, const KvRows& rows, const T* key, const T* value,
               int64_t stride, unsigned long long* bad, cudaStream_t stream);

/// Room for the partial results of sequences that several CTAs share. Calls that use it must not overlap.
class KvWorkspace {
 public:
  KvWorkspace(int rows, int query_heads, int head_dim);
  DeviceBuffer<float> partial;
  DeviceBuffer<int> arrived;
  int processors = 0;
};

/// out[i, h] = softmax(scale * q[i, h] K^T) V over the lengths[i] tokens of row i, or its last `window`; q
/// and out FP32 [rows, heads, head_dim], rows their stride apart. Query head h reads kv head
/// h / (heads / kv_heads).
struct KvAttention {
  int heads = 0;
  float scale = 1;
  int window = 0;      // 0: all tokens
  int max_length = 1;  // bounds the lengths: it only sizes grids
  const float* q = nullptr;
  int64_t q_stride = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
};

/// Any layout, row by row.
void row_attention(const DeviceKvLayout& layout, const uint8_t* pages, const KvRows& rows,
                   const KvAttention& attention, KvWorkspace& workspace, cudaStream_t stream);

inline constexpr int kQueryTile = 128;
/// Consecutive tokens of one sequence, up to kQueryTile: rows [row, row + count) of a batch, the first at
/// `position`.
struct QueryTile {
  int32_t row, count, position, sequence;
};
/// Whether tile_attention takes this on the current GPU: heads of 64, 128 or 256 columns, whose pages fit
/// into shared memory (of 99 KiB on 8.6, 8.9 and 12.x: not 8 and 16 bits with 256 columns).
bool tile_attention_fits(const DeviceKvLayout& layout);
/// Causal attention of whole tiles of tokens (prefill) on the tensor cores: pages are widened to FP16, one
/// rounding a value. `tiles` [count] in GPU memory; rows' lengths and sequence_of are not read.
void tile_attention(const DeviceKvLayout& layout, const uint8_t* pages, const KvRows& rows,
                    const QueryTile* tiles, int count, const KvAttention& attention, cudaStream_t stream);

}  // namespace quatrain::ops
