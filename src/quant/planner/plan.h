// Which transforms, residual blocks and 8-bit inputs to buy within a limit on what a model costs.
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
  static constexpr size_t kNothing = static_cast<size_t>(-1);
  double gain = 0, cost = 0;
  size_t after = kNothing;  // an earlier item of no smaller gain / cost, without which this one is none
};

/// Greedy knapsack: items in descending order of gain / cost (of equal ones the earlier first), each taken
/// where it still fits into `budget` and what it needs is taken; items without a gain never. What it leaves
/// behind is worth less than one item at the ratio where it stopped. Returns their numbers, ascending.
std::vector<size_t> choose_items(std::span<const PlanItem> items, double budget);

struct QuantizationChoice {
  BlockChoice blocks;                          // of every linear
  std::vector<std::string> inputs8;            // linears that take 8-bit inputs; of plan.max_slowdown only
  std::vector<Recipe::Transforms> transforms;  // of every layer; of plan.transforms only, else empty
  Json report;                                 // what was bought, beside what the recipe without a plan has
};

/// The recipes that the planner may give a layer, planned(recipe) first: with plan.transforms one for each
/// member of the balanced family (none first) at the inputs of q, k, v, of gate, up and of down. Where no
/// block of 16 columns or more divides a width, none stands in for the balanced block; left_out() says so.
std::vector<PlanVariant> plan_variants(const ModelConfig& model, const Recipe& recipe);

/// Spends recipe.plan's limit on what gives most back. Costs:
///   plan.budget_bits   bits in the file of the layers' linears: scales, residual blocks and their indices
///   plan.max_slowdown  what decoding a token reads: those bits (of as many experts as a token takes) and the
///                      head's; a site with 8-bit inputs costs plan.inputs8 of its 4-bit weights' bits more,
///                      one with a transform transform_price()
/// `measured` are the sensitivities of plan_variants(). With plan.transforms each site takes a member first,
/// against 8-bit inputs and residual blocks; the rest of the limit then goes to those two. A limit below what
/// 4 bits everywhere take is an error.
QuantizationChoice choose_plan(const ModelConfig& model, const Recipe& recipe,
                               std::span<const PlanVariant> variants,
                               std::span<const Sensitivities> measured);

/// What an online transform of `width` inputs costs a token, in bits of 4-bit weights that could be read
/// instead. Blocks: their BF16 values. Hadamard transforms read nothing: their operations (ops/hadamard.h), 2
/// bits each, as a 4-bit weight takes a multiplication and an addition.
double transform_price(const Transform& transform, int64_t width);

/// The members that plan_variants() leaves out: {"site", "member", "reason"} each.
Json left_out(const ModelConfig& model, const Recipe& recipe);

/// The recipe as its layers are quantised once a plan has chosen: without what the plan replaces. With
/// plan.transforms its own are what any layer may have.
Recipe planned(Recipe recipe, const ModelConfig& model);

}  // namespace quatrain
