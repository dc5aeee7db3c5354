// What a recipe means for one model: the policy of every linear, groups fitted to each width.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/artifact.h"
#include "model/config.h"
#include "quant/recipe.h"
#include "quant/weights/rtn.h"

namespace quatrain {

inline constexpr const char* kEmbeddingName = "model.embed_tokens";
inline constexpr const char* kHeadName = "lm_head";

struct QuantizationPlan {
  QuantizationConfig config;
  /// One line for each width that a group did not divide, for the log and the report.
  std::vector<std::string> notes;
};

/// Policies of every linear, the head and the cache. A group that does not divide a width becomes the largest
/// power of two below it that does; below 16 columns, the whole row. The head's input is A8, asymmetric, in
/// groups of 128 (fitted), whatever the recipe. Tied embeddings stay tied where both have the same bits.
/// `by_layer`: the transforms of every layer where they are not the recipe's, else empty.
QuantizationPlan plan_quantization(const ModelConfig& model, const Recipe& recipe,
                                   std::span<const Recipe::Transforms> by_layer = {});

/// Whether transforms in blocks of `block` columns, or fewer from 16 on, divide rows of `width` columns.
bool has_blocks(int64_t width, int64_t block);

/// The type of large tensors that stay unquantised; norms are small and exact in FP32.
std::string_view half_type(std::string_view dtype);

/// The seed of the transform of `site` in a layer: every one its own stream.
uint64_t transform_seed(const Recipe& recipe, int64_t layer, std::string_view site);

/// The weight stage of one linear under a plan. The embedding and the head take one scale a row, and no
/// residual at 4 bits.
WeightFormat weight_format(const Recipe& recipe, const LinearPolicy& policy, const std::string& linear);

}  // namespace quatrain
