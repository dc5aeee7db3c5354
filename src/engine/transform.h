// Online transforms: from a policy's Transform to an operator on activations.
#pragma once

#include <memory>
#include <string_view>

#include "base/thread_pool.h"
#include "checkpoint/artifact.h"
#include "engine/weight_source.h"
#include "model/config.h"

namespace quatrain {

class OnlineTransform {
 public:
  virtual ~OnlineTransform() = default;
  /// Transforms rows of `width` values in place, `stride` floats apart. Runs on the calling thread.
  virtual void apply(float* x, int64_t rows, int64_t stride) const = 0;
};

/// The operator of `transform` on vectors of `width` values; nullptr for kind "none". Stored tensors are read
/// from `source`. An unknown kind, an order or a tensor that does not fit the width is an Error that begins
/// with `site` (the linear).
std::unique_ptr<OnlineTransform> make_transform(const Transform& transform, int64_t width,
                                                std::string_view site, const WeightSource* source = nullptr);

/// The operator of a key transform on a token's heads of q and k, which lie side by side; nullptr for "none".
std::unique_ptr<OnlineTransform> make_key_transform(const Transform& transform, const ModelConfig& config,
                                                    std::string_view site, const WeightSource& source);

}  // namespace quatrain
