#include "quant/planner/plan.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "quant/policy.h"
#include "quant/residual/select.h"

namespace quatrain {
namespace {

struct LinearCost {
  double weights = 0, bits = 0;  // the 4-bit ones with their scales
  double read = 1;               // how much of it a token reads: the share of experts that it takes
};

class Planner {
 public:
  Planner(const ModelConfig& model, const Recipe& recipe, const QuantizationConfig& config,
          const Sensitivities& sensitivities)
      : model_(model), recipe_(recipe), config_(config), sensitivities_(sensitivities) {
    for (int64_t layer = 0; layer < model.layers; ++layer)
      for (const LinearShape& linear : linears_of_layer(model, layer)) {
        const LinearCost cost = cost_of(linear);
        weights_ += cost.weights;
        bits_ += cost.bits;
        read_ += cost.bits * cost.read;
        costs_[linear.name] = cost;
      }
    // One scale a row; at 8 bits the index of every block.
    const auto head = static_cast<double>(model.vocabulary * model.hidden);
    read_ += head * recipe.lm_head_bits + (recipe.lm_head_bits == 16 ? 0 : 32.0 * model.vocabulary);
  }

  QuantizationChoice run() {
    const bool slower = recipe_.plan.max_slowdown > 0;
    const double budget =
        slower ? (recipe_.plan.max_slowdown - 1) * read_ : recipe_.plan.budget_bits * weights_ - bits_;
    require(
        budget >= 0,
        "recipe {}: plan.budget_bits = {:g}: the 4-bit weights with their scales take {:.4f} bits already",
        recipe_.name, recipe_.plan.budget_bits, bits_ / weights_);
    std::vector<PlanItem> items;
    for (const auto& [name, gains] : sensitivities_.blocks)
      for (const double gain : gains)
        items.push_back({gain, block_bits(name) * (slower ? cost(name).read : 1)});
    const size_t inputs = items.size();
    if (slower)
      for (const SensitiveSite& site : sensitivities_.sites)
        items.push_back({site.inputs8, input_cost(site)});

    QuantizationChoice choice;
    const std::vector<size_t> taken = choose_items(items, budget);
    auto next = taken.begin();
    size_t first = 0;
    for (const auto& [name, gains] : sensitivities_.blocks) {
      std::vector<int32_t>& own = choice.blocks[name];
      for (; next != taken.end() && *next < first + gains.size(); ++next)
        own.push_back(static_cast<int32_t>(*next - first));
      first += gains.size();
    }
    std::set<std::string> wide = slower ? std::set<std::string>() : recipe_inputs8();
    for (; next != taken.end(); ++next)
      for (const std::string& linear : sensitivities_.sites[*next - inputs].linears) {
        choice.inputs8.push_back(linear);
        wide.insert(linear);
      }
    report(choice, wide);
    return choice;
  }

 private:
  LinearCost cost_of(const LinearShape& linear) const {
    const int64_t group = config_.linear(linear.name).weight_group;
    const int64_t row_bits =
        (linear.in + 1) / 2 * 8 + (group == 0 ? 32 : (linear.in + group - 1) / group * 16);
    const bool expert = linear.name.find(".experts.") != std::string::npos;
    return {static_cast<double>(linear.out * linear.in), static_cast<double>(linear.out * row_bits),
            expert
                ? static_cast<double>(model_.moe.experts_per_token) / static_cast<double>(model_.moe.experts)
                : 1};
  }

  const LinearCost& cost(const std::string& linear) const { return costs_.at(linear); }

  // A low nibble for each of its weights, and its number.
  double block_bits(const std::string& linear) const {
    return static_cast<double>(4 * kResidualRows * config_.linear(linear).residual_block + 32);
  }

  double input_cost(const SensitiveSite& site) const {
    double bits = 0;
    for (const std::string& linear : site.linears) bits += cost(linear).bits * cost(linear).read;
    return recipe_.plan.inputs8 * bits;
  }

  std::set<std::string> recipe_inputs8() const {
    std::set<std::string> names;
    for (const int64_t layer : recipe_.layers_with_8_bits(model_.layers))
      for (const LinearShape& linear : linears_of_layer(model_, layer)) names.insert(linear.name);
    return names;
  }

  // Costs and estimated gains of a choice.
  Json account(const BlockChoice& blocks, const std::set<std::string>& wide) const {
    double bits = bits_, read = read_, from_blocks = 0, from_inputs = 0;
    size_t count = 0, linears8 = 0;
    for (const auto& [name, own] : blocks) {
      const double extra = static_cast<double>(own.size()) * block_bits(name);
      bits += extra;
      read += extra * cost(name).read;
      count += own.size();
      for (const int32_t block : own)
        from_blocks += sensitivities_.blocks.at(name)[static_cast<size_t>(block)];
    }
    for (const SensitiveSite& site : sensitivities_.sites) {
      if (!wide.contains(site.linears[0])) continue;
      linears8 += site.linears.size();
      read += input_cost(site);
      from_inputs += site.inputs8;
    }
    return {{"bits_per_weight", bits / weights_}, {"slowdown", read / read_},
            {"residual_blocks", count},           {"linears_with_8_bit_inputs", linears8},
            {"gain_of_blocks", from_blocks},      {"gain_of_inputs", from_inputs}};
  }

  void report(QuantizationChoice& choice, const std::set<std::string>& wide) const {
    double blocks = 0, inputs = 0;
    for (const auto& [name, gains] : sensitivities_.blocks)
      for (const double gain : gains) blocks += std::max(gain, 0.0);
    for (const SensitiveSite& site : sensitivities_.sites) inputs += site.inputs8;
    BlockChoice uniform;
    for (const auto& [name, gains] : sensitivities_.blocks)
      uniform[name] = select_blocks(gains, recipe_.residual.budget);
    Json bought = account(choice.blocks, wide), without = account(uniform, recipe_inputs8());
    Json limit = recipe_.plan.max_slowdown > 0
                     ? Json{{"max_slowdown", recipe_.plan.max_slowdown}, {"inputs8", recipe_.plan.inputs8}}
                     : Json{{"budget_bits", recipe_.plan.budget_bits}};
    Json linears = Json::array();
    for (const auto& [name, own] : choice.blocks)
      linears.push_back({{"name", name},
                         {"residual_share", static_cast<double>(own.size()) /
                                                static_cast<double>(sensitivities_.blocks.at(name).size())},
                         {"inputs", wide.contains(name) ? 8 : recipe_.activations.bits}});
    choice.report = {{"unit", "nats a token"},
                     {"limit", limit},
                     {"gain_of_all_blocks", blocks},
                     {"gain_of_all_inputs", inputs},
                     {"bought", bought},
                     {"recipe_without_plan", without},
                     {"linears", linears}};
    const auto line = [](const char* what, const Json& of) {
      log_info(
          "{}: {:.3f} bits a weight, {:.3f} of a token's time at 4 bits, {} residual blocks, {} linears with "
          "8-bit inputs; estimated to give back {:.4f} + {:.4f} nats",
          what, of.at("bits_per_weight").get<double>(), of.at("slowdown").get<double>(),
          of.at("residual_blocks").get<size_t>(), of.at("linears_with_8_bit_inputs").get<size_t>(),
          of.at("gain_of_blocks").get<double>(), of.at("gain_of_inputs").get<double>());
    };
    line("recipe without its plan", without);
    line("plan", bought);
  }

  const ModelConfig& model_;
  const Recipe& recipe_;
  const QuantizationConfig& config_;
  const Sensitivities& sensitivities_;
  std::map<std::string, LinearCost> costs_;
  double weights_ = 0, bits_ = 0;  // of the layers' linears at 4 bits
  double read_ = 0;                // bits that a token reads of them and of the head
};

}  // namespace

std::vector<size_t> choose_items(std::span<const PlanItem> items, double budget) {
  std::vector<size_t> order(items.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::erase_if(order, [&](size_t item) { return !(items[item].gain > 0); });
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return items[a].gain * items[b].cost > items[b].gain * items[a].cost;  // costs may be 0
  });
  std::vector<size_t> taken;
  double left = budget;
  for (const size_t item : order) {
    if (items[item].cost > left) continue;
    left -= items[item].cost;
    taken.push_back(item);
  }
  std::sort(taken.begin(), taken.end());
  return taken;
}

QuantizationChoice choose_plan(const ModelConfig& model, const Recipe& recipe,
                               const QuantizationConfig& config, const Sensitivities& sensitivities) {
  return Planner(model, recipe, config, sensitivities).run();
}

Recipe planned(Recipe recipe) {
  if (!recipe.plan.asked()) return recipe;
  recipe.residual.budget = 0;
  recipe.residual.scope = "matrix";
  if (recipe.plan.max_slowdown > 0) recipe.activations.layers8 = "none";
  recipe.plan = {};
  return recipe;
}

}  // namespace quatrain
