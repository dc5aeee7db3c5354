// The 4-bit KV cache in GPU memory: pages, append, and attention of one new token a sequence over them.
//
// A page holds 64 tokens of one layer. Head after head: keys [64][head_dim / 2], values [64][head_dim / 2]
// (column 2k in the low half of byte k), then of keys and of values [64] pairs of FP16 scale and int16 zero.
// The group is the head: x = scale * (code - zero), as kv_group() of ops/kv_cache.h defines them.
#pragma once

#include <cuda_bf16.h>

#include "ops/cuda/device_buffer.h"

namespace quatrain::ops {

inline constexpr int kKv4PageTokens = 64;

struct Kv4Layout {
  int kv_heads = 0;
  int head_dim = 0;  // 64, 128 or 256

  __host__ __device__ int64_t codes_bytes() const { return int64_t{kKv4PageTokens} * head_dim / 2; }
  __host__ __device__ int64_t head_bytes() const { return 2 * codes_bytes() + 2 * kKv4PageTokens * 4; }
  __host__ __device__ int64_t page_bytes() const { return head_bytes() * kv_heads; }
};

/// The sequences of a batch: page_table [sequences, max_pages] holds the numbers of a sequence's pages in
/// `pages`, lengths [sequences] the tokens it has, at least 1. Both in GPU memory.
struct Kv4Sequences {
  int sequences = 0;
  int max_pages = 0;
  const int32_t* page_table = nullptr;
  const int32_t* lengths = nullptr;
};

/// Quantises one new key and value a sequence and head, BF16 [sequences, kv_heads, head_dim], rows `stride`
/// elements apart, and stores them as token lengths[i] - 1 of sequence i. `bad`, where given, takes the
/// atomicMin of sequence * kv_heads + head of values that are not finite or too large for an FP16 scale.
void kv4_append(const Kv4Layout& layout, uint8_t* pages, const Kv4Sequences& sequences,
                const __nv_bfloat16* key, const __nv_bfloat16* value, int64_t stride, unsigned long long* bad,
                cudaStream_t stream);

/// Room for the partial results of sequences that several CTAs share. Calls that use it must not overlap.
class Kv4Workspace {
 public:
  Kv4Workspace(int sequences, int query_heads, int head_dim);
  DeviceBuffer<float> partial;
  DeviceBuffer<int> arrived;
  int processors = 0;
};

/// out[i, h] = softmax(scale * q[i, h] K^T) V over all lengths[i] tokens; q and out BF16 [sequences,
/// query_heads, head_dim], rows `q_stride` and `out_stride` elements apart. query_heads is 1 to 8 times
/// kv_heads; query head h reads kv head h / (query_heads / kv_heads). max_length bounds the lengths: it only
/// sizes the grid.
void kv4_decode_attention(const Kv4Layout& layout, const uint8_t* pages, const Kv4Sequences& sequences,
                          const __nv_bfloat16* q, int64_t q_stride, int query_heads, int max_length,
                          float scale, Kv4Workspace& workspace, __nv_bfloat16* out, int64_t out_stride,
                          cudaStream_t stream);

}  // namespace quatrain::ops
