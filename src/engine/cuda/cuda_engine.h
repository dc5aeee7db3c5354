// The engine on an NVIDIA GPU, from any source of weights.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "engine/weight_source.h"

namespace quatrain {

/// An Engine that can also decode greedily without the host in between.
class GreedyEngine {
 public:
  virtual ~GreedyEngine() = default;
  /// Feeds one token to each sequence, then what the model finds likeliest, `steps` times: the tokens found,
  /// [steps][sequences]. Afterwards every sequence is `steps` longer.
  virtual std::vector<int32_t> greedy(std::span<const int64_t> sequences, std::span<const int32_t> tokens,
                                      int64_t steps) = 0;
};

/// `options.device` is cuda or cuda:N. The result is a GreedyEngine too.
std::unique_ptr<Engine> make_cuda_engine(std::unique_ptr<WeightSource> source, const EngineOptions& options);

}  // namespace quatrain
