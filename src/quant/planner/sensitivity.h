// What quantisation noise costs the model, place by place, in one unit: nats of its loss a token.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "checkpoint/artifact.h"
#include "quant/recipe.h"
#include "quant/reference/decoder_layer.h"
#include "quant/reference/weight_source.h"
#include "quant/sample_work.h"

namespace quatrain {

/// Linears that share an input (of one expert).
struct SensitiveSite {
  Site site = Site::Qkv;
  int64_t layer = 0;
  std::vector<std::string> linears;
  double inputs8 = 0;  // what 8-bit inputs give back against 4-bit ones; 0 where the recipe's have others
  double noise = 0;    // what quantised inputs and 4-bit weights, rounded to nearest, cost
};

struct Sensitivities {
  /// By linear: what the low nibble of each residual block gives back against 4-bit weights, row-major.
  std::map<std::string, std::vector<double>> blocks;
  std::vector<SensitiveSite> sites;
};

/// A recipe that a layer may have, and the policies that it gives.
struct PlanVariant {
  Recipe recipe;
  QuantizationConfig config;
};

/// Of the unquantised model in `source`, each layer with the transforms and the policies of a variant: one
/// result for each, from the same gradients, since transforms leave the function as it is. A small error e of
/// a value costs g^2 e^2 / 2 on average, where g is the gradient of the log-likelihood of labels that the
/// model itself draws: the diagonal of the Fisher information, which is the Hessian of the KL divergence from
/// the model. Rounding errors count as independent of one another. So, means over tokens,
///   a weight  w_oj:  1/2 E[g_o^2 x_j^2] (R^2 - E^2), R and E its errors at 4 and at 8 bits, g_o the gradient
///   of
///                    output o (residual/score.h, "delta-hessian" with a sensitivity of each weight)
///   an input  x_j:   1/2 E[g_j^2 (e4_j^2 - e8_j^2)], e4 and e8 its errors at 4 and at 8 bits
/// Samples run in FP32, one layer resident, the hidden states before every layer kept (in files of `work`
/// where they are large).
std::vector<Sensitivities> measure_sensitivities(const WeightSource& source,
                                                 std::span<const PlanVariant> variants,
                                                 const std::vector<std::vector<int32_t>>& samples,
                                                 const SampleWork& work, ThreadPool& pool);

}  // namespace quatrain
