// Which experts a token runs through: the router's softmax over all experts, its top k, renormalised where
// the model says so (the order of Mixtral and of Qwen3-MoE).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "model/config.h"

namespace quatrain {

struct RoutedToken {
  int64_t row = 0;
  float weight = 0;
};

/// Of each expert, its tokens in row order.
using ExpertRouting = std::vector<std::vector<RoutedToken>>;

/// Logits [rows, experts]. Equal probabilities go to the lower expert. A logit that is not finite is an Error
/// that begins with `where`.
ExpertRouting route_to_experts(std::span<const float> logits, const MoeConfig& moe, std::string_view where);

}  // namespace quatrain
