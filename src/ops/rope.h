// Rotary position embedding: pairs (i, i + half) of the first 2 * half values of a head turn by
// position * inverse_frequency[i].
#pragma once

#include <cstdint>
#include <span>

namespace quatrain::ops {

/// cos and sin [inverse_frequencies.size()] of one position, times `scale` (YaRN's attention factor). The
/// angle is an FP32 product, as in the reference implementations.
void rope_factors(int64_t position, std::span<const float> inverse_frequencies, float scale, float* cosine,
                  float* sine);

/// Turns `heads` heads, `head_dim` floats apart, in place; values from 2 * half on stay.
void rope(float* x, int64_t heads, int64_t head_dim, int64_t half, const float* cosine, const float* sine);

}  // namespace quatrain::ops
