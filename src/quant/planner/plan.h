// Which residual blocks and which 8-bit inputs to buy within a limit on what a model costs.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "checkpoint/artifact.h"
#include "model/config.h"
#include "quant/layer_quantizer.h"
#include "quant/planner/sensitivity.h"
#include "quant/recipe.h"

namespace quatrain {

struct PlanItem {
  double gain = 0, cost = 0;
};

/// Greedy knapsack: items in descending order of gain / cost (of equal ones the earlier first), each taken
/// where it still fits into `budget`; items without a gain never. What it leaves behind is worth less than
/// one item at the ratio where it stopped. Returns their numbers, ascending.
std::vector<size_t> choose_items(std::span<const PlanItem> items, double budget);

struct QuantizationChoice {
  BlockChoice blocks;                // of every linear
  std::vector<std::string> inputs8;  // linears that take 8-bit inputs; of plan.max_slowdown only
  Json report;                       // what was bought, beside what the recipe without a plan would have
};

/// Spends recipe.plan's limit on what gives most back. Costs:
///   plan.budget_bits   bits in the file of the layers' linears: scales, residual blocks and their indices
///   plan.max_slowdown  what decoding a token reads: those bits (of as many experts as a token takes) and the
///                      head's; a site with 8-bit inputs costs plan.inputs8 of its 4-bit weights' bits more
/// `config` is the plan of the recipe with 4-bit inputs throughout where they are to be bought. A limit below
/// what 4 bits everywhere take is an error.
QuantizationChoice choose_plan(const ModelConfig& model, const Recipe& recipe,
                               const QuantizationConfig& config, const Sensitivities& sensitivities);

/// The recipe as its layers are quantised once a plan has chosen: without what the plan replaces.
Recipe planned(Recipe recipe);

}  // namespace quatrain
