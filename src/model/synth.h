// Synthetic models: any shape, random weights, for measurements that do not need a trained model.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "model/checkpoint.h"

namespace quatrain {

struct SynthOptions {
  uint64_t seed = 0;
  std::string dtype = "bfloat16";  // float32, float16 or bfloat16
  int threads = 0;
  uint64_t shard_bytes = uint64_t{4} << 30;
};

/// Fills `out` with the values [begin, begin + out.size()) of a tensor's random stream: near-normal, mean 0,
/// variance 1, bounded by 2 sqrt(3). The same on every platform and for every split into calls.
void synthetic_values(uint64_t seed, std::string_view tensor, int64_t begin, std::span<float> out);

/// The synthetic model without a file: tensors are made as they are read. synthesize() writes the same
/// values.
std::unique_ptr<Checkpoint> synthetic_checkpoint(const ModelConfig& config, const SynthOptions& options);

/// Writes a hub directory of that shape without a tokenizer. Linears have standard deviation 1 / sqrt(in),
/// what adds to the residual stream 1 / sqrt(2 layers) of it, gains are 1 and biases small, so that
/// activations and logits stay near 1 at any depth. Streams: memory is a few rows. The stated bytes must fit
/// the disk.
void synthesize(const ModelConfig& config, const fs::path& directory, const SynthOptions& options);

}  // namespace quatrain
