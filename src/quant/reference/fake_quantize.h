// Fake quantisation of tensors: the formulas of docs/format.md written a second time, for the reference
// forward only. Rounding passes gradients straight through.
#pragma once

#include <torch/torch.h>

#include <string_view>

#include "base/number_format.h"
#include "checkpoint/artifact.h"

namespace quatrain {

/// s (q - z) for each (token, group) of x [tokens, width] (FP32). policy.bits of 16 returns x. NaN or
/// infinity is an error that names `site`, token and channel; on a GPU, one of settle_checks().
torch::Tensor fake_quantize(const torch::Tensor& x, const ActivationPolicy& policy, std::string_view site);

/// As fake_quantize for keys or values [tokens, heads, head_dim], with FP16 scales that are rounded before
/// the codes are formed.
torch::Tensor fake_quantize_kv(const torch::Tensor& x, const KvPolicy& policy, std::string_view site);

/// Looks at what fake quantisation on a GPU has left to be checked by this thread, since waiting for each
/// answer would leave the GPU idle; or forgets it, behind another error.
void settle_checks();
void forget_checks();

}  // namespace quatrain
