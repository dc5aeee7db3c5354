#include "engine/expert_routing.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace quatrain {

ExpertRouting route_to_experts(std::span<const float> logits, const MoeConfig& moe, std::string_view where) {
  const auto experts = static_cast<size_t>(moe.experts), chosen = static_cast<size_t>(moe.experts_per_token);
  ExpertRouting routing(experts);
  std::vector<float> probability(experts);
  std::vector<size_t> order(experts);
  for (size_t row = 0; row * experts < logits.size(); ++row) {
    const std::span<const float> values = logits.subspan(row * experts, experts);
    const float top = *std::max_element(values.begin(), values.end());
    float sum = 0;
    for (size_t e = 0; e < experts; ++e) {
      require(std::isfinite(values[e]), "{}: the router's logit of expert {} for token {} of the batch is {}",
              where, e, row, values[e]);
      probability[e] = std::exp(values[e] - top);
      sum += probability[e];
    }
    for (float& p : probability) p /= sum;
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return probability[a] > probability[b]; });
    float kept = 1;
    if (moe.normalize_top_k) {
      kept = 0;
      for (size_t i = 0; i < chosen; ++i) kept += probability[order[i]];
    }
    for (size_t i = 0; i < chosen; ++i)
      routing[order[i]].push_back({static_cast<int64_t>(row), probability[order[i]] / kept});
  }
  return routing;
}

}  // namespace quatrain
