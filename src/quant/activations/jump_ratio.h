// DynamicPTQ (arXiv 2606.12487): which layers a quantised residual stream hurts most.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"

namespace quatrain {

class WeightSource;

/// Means over tokens t of the layer's update dx = output - input x:
/// jump_ratio = |dx| / (|x| + eps); snr(b) = 10 log10(|x|^2 / (|Q_b(x + dx) - (x + dx)|^2 + eps)) dB with one
/// step a token, Q_b(x) = s rint(x / s), s = (max - min) / (2^b - 1); eps = 1e-8.
struct LayerJump {
  double jump_ratio = 0, snr4 = 0, snr8 = 0;
};

/// One entry a layer of the 16-bit model at `model`. With `rotate` the residual stream is that of a random
/// Hadamard (as in QuaRot; not where norms follow the linears, which cannot take one): jump ratios stay, the
/// noise is that of the rotated states. Samples run on `threads` threads (0: one a core), with the same
/// result on any number.
std::vector<LayerJump> measure_jumps(const fs::path& model, const std::vector<std::vector<int32_t>>& samples,
                                     bool rotate, int threads = 0);

/// The same for a model that is open; `where` begins error texts.
std::vector<LayerJump> measure_jumps(std::unique_ptr<WeightSource> source, const std::string& where,
                                     const std::vector<std::vector<int32_t>>& samples, bool rotate,
                                     int threads = 0);

/// Layers (from 0) with jump_ratio > 0.9 and snr4 < 13.5 dB: the thresholds that give the published choice on
/// Llama-3-8B.
std::vector<int64_t> layers_by_threshold(const std::vector<LayerJump>& jumps);
/// The `count` layers with the largest sum of ranks in jump ratio (descending) and snr4 (ascending), in
/// order.
std::vector<int64_t> layers_by_rank(const std::vector<LayerJump>& jumps, int64_t count);

/// A table, one line a layer, with a bar for the jump ratio, and the layers that each rule chooses.
std::string jump_text(const std::vector<LayerJump>& jumps);
Json jump_json(const std::vector<LayerJump>& jumps);

}  // namespace quatrain
