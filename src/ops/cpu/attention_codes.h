// Attention on the codes of KV pages themselves, without widening them: queries and softmax weights become
// 24-bit integers, sums are exact, and scales and zeros enter once a token.
//   score[t] = s_q s_k[t] (sum_d q[d] c_k[t, d] - z_k[t] sum_d q[d])
//   out[d]   = s_w (sum_t w[t] c_v[t, d]) - sum_t p[t] s_v[t] z_v[t],   w[t] = rint(p[t] s_v[t] / s_w)
#pragma once

#include "ops/cpu/attention.h"

namespace quatrain::ops {

/// Whether the pages' layout suits: 4- or 8-bit codes whose groups are whole vectors.
bool attends_codes_avx512vnni(const KvLayout& layout);
/// AttentionKernel::attend for such a layout; at most kSplitPages pages.
void attend_codes_avx512vnni(const AttentionBlock& block, int64_t first, int64_t last,
                             const AttentionState& state);

}  // namespace quatrain::ops
