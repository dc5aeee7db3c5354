// A forward pass in double precision, written straight from the equations: no cache, no batches, no kernels.
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/artifact.h"
#include "memory_model.h"

namespace quatrain {

/// Logits [ids.size(), vocabulary] with `weights` as they stand (dequantised already); linear inputs, keys
/// and values go through the quantisers that `quantization` names (16 bits everywhere by default; no
/// transforms).
std::vector<double> naive_logits(const MemoryCheckpoint& weights, const QuantizationConfig& quantization,
                                 const std::vector<int32_t>& ids);

}  // namespace quatrain
