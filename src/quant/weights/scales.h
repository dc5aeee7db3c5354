// Scales of weight groups: largest value, or the clip of least error.
#pragma once

#include <cstdint>
#include <span>

namespace quatrain {

struct ScaleRule {
  int bits = 4;       // 4: codes hi in [-8, 7], step = scale; 8: codes c in [-128, 127], step = scale / 16
  bool clip = false;  // search p in {1.00, 0.99, ..., 0.21} for the least sum |w^ - w|^2.4
  bool half = false;  // round the scale to FP16 before any code is formed (weight groups)
};

/// scale = max|w| / 7 (4 bits) or 16 max|w| / 127 (8 bits), times p where the clip is searched; of equal
/// errors the larger p wins. All-zero weights give 1. With `half` the scale lies in [2^-24, 65504]; a group
/// that needs more throws, without it at least FLT_MIN.
float weight_scale(std::span<const float> weights, const ScaleRule& rule);

/// sum |w^ - w|^2.4 of weights rounded with `scale`; a sum above `limit` may be returned early.
float clip_error(std::span<const float> weights, float scale, int bits, float limit);

}  // namespace quatrain
