// GGUF's quantised blocks to FP32 and back, with the operations and their order as ggml's reference defines
// them, so that every value is bit-identical to it (no contraction).
#pragma once

#include <cstddef>
#include <cstdint>

namespace quatrain {

/// Blocks of 32 columns.
void decode_q4_0(const std::byte* in, int64_t blocks, float* out);
void decode_q4_1(const std::byte* in, int64_t blocks, float* out);
void decode_q5_0(const std::byte* in, int64_t blocks, float* out);
void decode_q5_1(const std::byte* in, int64_t blocks, float* out);
void decode_q8_0(const std::byte* in, int64_t blocks, float* out);
void decode_iq4_nl(const std::byte* in, int64_t blocks, float* out);

/// Super-blocks of 256 columns.
void decode_q2_k(const std::byte* in, int64_t blocks, float* out);
void decode_q3_k(const std::byte* in, int64_t blocks, float* out);
void decode_q4_k(const std::byte* in, int64_t blocks, float* out);
void decode_q5_k(const std::byte* in, int64_t blocks, float* out);
void decode_q6_k(const std::byte* in, int64_t blocks, float* out);

/// FP32 to blocks of 32 columns, rounded as ggml's reference quantisers do. The values are finite.
void encode_q4_0(const float* in, int64_t blocks, std::byte* out);
void encode_q4_1(const float* in, int64_t blocks, std::byte* out);
void encode_q8_0(const float* in, int64_t blocks, std::byte* out);

}  // namespace quatrain
