#include "quant/planner/plan.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/hadamard_matrix.h"
#include "base/log.h"
#include "quant/policy.h"
#include "quant/residual/select.h"

namespace quatrain {
namespace {

constexpr const char* kBlocks = "balanced-block";
constexpr const char* kMembers[] = {"none", "balanced-diagonal", "balanced-diagonal-hadamard", kBlocks};
constexpr int kRounds = 4;  // transforms and blocks wait for each other's choice

struct LinearCost {
  double weights = 0, bits = 0;  // the 4-bit ones with their scales
  double read = 1;               // how much of it a token reads: the share of experts that it takes
  int64_t inputs = 0;
};

// A transform of a site's input with a number of bits.
struct SiteOption {
  size_t variant = 0;
  double loss = 0, cost = 0;
};

// The options that no mixture of two others beats, in ascending order of cost: the lower convex hull.
std::vector<SiteOption> lower_hull(std::vector<SiteOption> options) {
  std::stable_sort(options.begin(), options.end(), [](const SiteOption& a, const SiteOption& b) {
    return a.cost < b.cost || (a.cost == b.cost && a.loss < b.loss);
  });
  std::vector<SiteOption> hull;
  for (const SiteOption& next : options) {
    if (!hull.empty() && next.loss >= hull.back().loss) continue;
    // The last point lies on or above the line from the one before it to the next.
    while (hull.size() > 1) {
      const SiteOption &a = hull[hull.size() - 2], &b = hull.back();
      if ((a.loss - b.loss) * (next.cost - a.cost) > (a.loss - next.loss) * (b.cost - a.cost)) break;
      hull.pop_back();
    }
    hull.push_back(next);
  }
  return hull;
}

const std::string& kind_at(const Recipe::Transforms& transform, Site site) {
  static const std::string none = "none";
  return site == Site::Qkv      ? transform.inputs
         : site == Site::GateUp ? transform.gate_up_kind()
         : site == Site::Down   ? transform.down
                                : none;
}

// `member` of the balanced family at the inputs of all sites where it can be.
void give(Recipe::Transforms& transform, const std::string& member, const ModelConfig& model) {
  const auto at = [&](int64_t width, int64_t block) {
    return member != kBlocks || has_blocks(width, block) ? member : "none";
  };
  transform.inputs = at(model.hidden, transform.inputs_block);
  transform.gate_up = "inputs";
  transform.down = at(model.intermediate, transform.down_block);
}

class Planner {
 public:
  Planner(const ModelConfig& model, const Recipe& recipe, std::span<const PlanVariant> variants,
          std::span<const Sensitivities> measured)
      : model_(model), recipe_(recipe), variants_(variants), measured_(measured) {
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
    for (size_t site = 0; site < sites().size(); ++site)
      for (const std::string& linear : sites()[site].linears) site_of_[linear] = site;
    variant_of_.assign(sites().size(), 0);
  }

  QuantizationChoice run() {
    double budget =
        slower() ? (recipe_.plan.max_slowdown - 1) * read_ : recipe_.plan.budget_bits * weights_ - bits_;
    require(
        budget >= 0,
        "recipe {}: plan.budget_bits = {:g}: the 4-bit weights with their scales take {:.4f} bits already",
        recipe_.name, recipe_.plan.budget_bits, bits_ / weights_);
    QuantizationChoice choice;
    if (chooses_transforms()) {
      choose_transforms(budget);
      for (size_t site = 0; site < sites().size(); ++site) budget -= price(variant_of_[site], site);
      choice.transforms = transforms_by_layer();
    }
    std::vector<PlanItem> items = block_items();
    const size_t inputs = items.size();
    if (slower())
      for (size_t site = 0; site < sites().size(); ++site)
        items.push_back({inputs8_gain(site), input_cost(sites()[site])});

    const std::vector<size_t> taken = choose_items(items, budget);
    auto next = taken.begin();
    size_t first = 0;
    for (const auto& [name, any] : measured_[0].blocks) {
      std::vector<int32_t>& own = choice.blocks[name];
      for (; next != taken.end() && *next < first + any.size(); ++next)
        own.push_back(static_cast<int32_t>(*next - first));
      first += any.size();
    }
    std::set<std::string> wide = slower() ? std::set<std::string>() : recipe_inputs8();
    for (; next != taken.end(); ++next)
      for (const std::string& linear : sites()[*next - inputs].linears) {
        choice.inputs8.push_back(linear);
        wide.insert(linear);
      }
    report(choice, wide);
    return choice;
  }

 private:
  bool slower() const { return recipe_.plan.max_slowdown > 0; }
  bool chooses_transforms() const { return recipe_.plan.transforms; }
  const std::vector<SensitiveSite>& sites() const { return measured_[0].sites; }
  const QuantizationConfig& config() const { return variants_[0].config; }

  LinearCost cost_of(const LinearShape& linear) const {
    const int64_t group = config().linear(linear.name).weight_group;
    const int64_t row_bits =
        (linear.in + 1) / 2 * 8 + (group == 0 ? 32 : (linear.in + group - 1) / group * 16);
    const bool expert = linear.name.find(".experts.") != std::string::npos;
    return {static_cast<double>(linear.out * linear.in), static_cast<double>(linear.out * row_bits),
            expert
                ? static_cast<double>(model_.moe.experts_per_token) / static_cast<double>(model_.moe.experts)
                : 1,
            linear.in};
  }

  const LinearCost& cost(const std::string& linear) const { return costs_.at(linear); }

  // A low nibble for each of its weights, and its number.
  double block_bits(const std::string& linear) const {
    return static_cast<double>(4 * kResidualRows * config().linear(linear).residual_block + 32);
  }

  double input_cost(const SensitiveSite& site) const {
    double bits = 0;
    for (const std::string& linear : site.linears) bits += cost(linear).bits * cost(linear).read;
    return recipe_.plan.inputs8 * bits;
  }

  // Of the transform that a variant has at a site.
  double price(size_t variant, size_t site) const {
    if (sites()[site].site == Site::Output) return 0;  // no variant changes it
    const std::string& linear = sites()[site].linears[0];
    return transform_price(variants_[variant].config.linear(linear).input_transform, cost(linear).inputs);
  }

  double inputs8_gain(size_t site) const { return measured_[variant_of_[site]].sites[site].inputs8; }

  // Of a linear's blocks under the transform that its site has by now.
  const std::vector<double>& block_gains(const std::string& linear) const {
    return measured_[variant_of_[site_of_.at(linear)]].blocks.at(linear);
  }

  std::vector<PlanItem> block_items() const {
    std::vector<PlanItem> items;
    for (const auto& [name, any] : measured_[0].blocks)
      for (const double gain : block_gains(name))
        items.push_back({gain, block_bits(name) * (slower() ? cost(name).read : 1)});
    return items;
  }

  std::vector<SiteOption> options_at(size_t site) const {
    std::vector<SiteOption> options;
    const size_t members = sites()[site].site == Site::Output ? 1 : variants_.size();
    for (size_t variant = 0; variant < members; ++variant) {
      const SensitiveSite& own = measured_[variant].sites[site];
      const double cost = price(variant, site);
      options.push_back({variant, own.noise, cost});
      options.push_back({variant, own.noise - own.inputs8, cost + input_cost(own)});
    }
    return lower_hull(std::move(options));
  }

  // Every site climbs its hull while the steps are worth more than the blocks and steps that they displace.
  // What a block gives back depends on the transform, so that the choice is repeated with what it chose.
  void choose_transforms(double budget) {
    std::vector<std::vector<SiteOption>> options;
    for (size_t site = 0; site < sites().size(); ++site) {
      options.push_back(options_at(site));
      variant_of_[site] = options[site][0].variant;
    }
    for (int round = 0; round < kRounds; ++round) {
      std::vector<PlanItem> items = block_items();
      const size_t blocks = items.size();
      std::vector<std::pair<size_t, size_t>> steps;  // site, step
      for (size_t site = 0; site < options.size(); ++site)
        for (size_t step = 1; step < options[site].size(); ++step) {
          const SiteOption &before = options[site][step - 1], &now = options[site][step];
          items.push_back({before.loss - now.loss, now.cost - before.cost,
                           step > 1 ? items.size() - 1 : PlanItem::kNothing});
          steps.emplace_back(site, step);
        }
      const std::vector<size_t> before = variant_of_;
      for (size_t site = 0; site < options.size(); ++site) variant_of_[site] = options[site][0].variant;
      for (const size_t item : choose_items(items, budget))
        if (item >= blocks) {
          const auto [site, step] = steps[item - blocks];
          variant_of_[site] = options[site][step].variant;
        }
      if (variant_of_ == before) break;
    }
  }

  std::vector<Recipe::Transforms> transforms_by_layer() const {
    std::vector<Recipe::Transforms> all(static_cast<size_t>(model_.layers), variants_[0].recipe.transform);
    for (size_t i = 0; i < sites().size(); ++i) {
      Recipe::Transforms& own = all[static_cast<size_t>(sites()[i].layer)];
      const std::string& kind = kind_at(variants_[variant_of_[i]].recipe.transform, sites()[i].site);
      if (sites()[i].site == Site::Qkv) own.inputs = kind;
      if (sites()[i].site == Site::GateUp) own.gate_up = kind;
      if (sites()[i].site == Site::Down) own.down = kind;
    }
    return all;
  }

  std::set<std::string> recipe_inputs8() const {
    std::set<std::string> names;
    for (const int64_t layer : recipe_.layers_with_8_bits(model_.layers))
      for (const LinearShape& linear : linears_of_layer(model_, layer)) names.insert(linear.name);
    return names;
  }

  // Costs and estimated gains of a choice, under the transforms that the sites have by now.
  Json account(const BlockChoice& blocks, const std::set<std::string>& wide) const {
    double bits = bits_, read = read_, from_blocks = 0, from_inputs = 0, from_transforms = 0, transforms = 0;
    size_t count = 0, linears8 = 0;
    for (const auto& [name, own] : blocks) {
      const double extra = static_cast<double>(own.size()) * block_bits(name);
      bits += extra;
      read += extra * cost(name).read;
      count += own.size();
      for (const int32_t block : own) from_blocks += block_gains(name)[static_cast<size_t>(block)];
    }
    for (size_t i = 0; i < sites().size(); ++i) {
      const SensitiveSite& site = sites()[i];
      if (chooses_transforms()) {
        transforms += price(variant_of_[i], i);
        from_transforms += site.noise - measured_[variant_of_[i]].sites[i].noise;
      }
      if (!wide.contains(site.linears[0])) continue;
      linears8 += site.linears.size();
      read += input_cost(site);
      from_inputs += inputs8_gain(i);
    }
    Json all = {{"bits_per_weight", bits / weights_}, {"slowdown", (read + transforms) / read_},
                {"residual_blocks", count},           {"linears_with_8_bit_inputs", linears8},
                {"gain_of_blocks", from_blocks},      {"gain_of_inputs", from_inputs}};
    if (chooses_transforms()) {
      all["slowdown_of_transforms"] = transforms / read_;
      all["gain_of_transforms"] = from_transforms;
    }
    return all;
  }

  // What the recipe without a plan costs and gains, under its own transforms.
  Json account_of_recipe() {
    const std::vector<size_t> chosen = variant_of_;
    if (chooses_transforms())
      for (size_t site = 0; site < sites().size(); ++site)
        for (size_t variant = 0; variant < variants_.size(); ++variant)
          if (kind_at(variants_[variant].recipe.transform, sites()[site].site) ==
              kind_at(recipe_.transform, sites()[site].site)) {
            variant_of_[site] = variant;
            break;
          }
    BlockChoice uniform;
    for (const auto& [name, any] : measured_[0].blocks)
      uniform[name] = select_blocks(block_gains(name), recipe_.residual.budget);
    Json without = account(uniform, recipe_inputs8());
    variant_of_ = chosen;
    return without;
  }

  void report(QuantizationChoice& choice, const std::set<std::string>& wide) {
    double blocks = 0, inputs = 0;
    for (const auto& [name, any] : measured_[0].blocks)
      for (const double gain : block_gains(name)) blocks += std::max(gain, 0.0);
    for (size_t site = 0; site < sites().size(); ++site) inputs += inputs8_gain(site);
    Json bought = account(choice.blocks, wide), without = account_of_recipe();
    Json limit = slower()
                     ? Json{{"max_slowdown", recipe_.plan.max_slowdown}, {"inputs8", recipe_.plan.inputs8}}
                     : Json{{"budget_bits", recipe_.plan.budget_bits}};
    Json linears = Json::array();
    for (const auto& [name, own] : choice.blocks)
      linears.push_back({{"name", name},
                         {"residual_share", static_cast<double>(own.size()) /
                                                static_cast<double>(measured_[0].blocks.at(name).size())},
                         {"inputs", wide.contains(name) ? 8 : recipe_.activations.bits}});
    choice.report = {{"unit", "nats a token"},
                     {"limit", limit},
                     {"gain_of_all_blocks", blocks},
                     {"gain_of_all_inputs", inputs},
                     {"bought", bought},
                     {"recipe_without_plan", without},
                     {"linears", linears}};
    if (chooses_transforms()) report_sites(choice);
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

  // Every site's members: what the errors of 4-bit inputs and weights cost under each, and its price.
  void report_sites(QuantizationChoice& choice) const {
    Json all = Json::array();
    std::map<std::string, int> counts;
    for (size_t i = 0; i < sites().size(); ++i) {
      const SensitiveSite& site = sites()[i];
      if (site.site == Site::Output) continue;
      Json members = Json::object();
      for (size_t variant = 0; variant < variants_.size(); ++variant)
        members[kind_at(variants_[variant].recipe.transform, site.site)] = {
            {"loss", measured_[variant].sites[i].noise},
            {"loss_with_8_bit_inputs",
             measured_[variant].sites[i].noise - measured_[variant].sites[i].inputs8},
            {"slowdown", price(variant, i) / read_}};
      const std::string& kind = kind_at(variants_[variant_of_[i]].recipe.transform, site.site);
      ++counts[kind];
      all.push_back({{"layer", site.layer},
                     {"site", site.site == Site::Qkv      ? "qkv"
                              : site.site == Site::GateUp ? "gate_up"
                                                          : "down"},
                     {"transform", kind},
                     {"members", members}});
    }
    std::string text;
    for (const auto& [kind, count] : counts)
      text += fmt::format("{}{} at {} sites", text.empty() ? "" : ", ", kind, count);
    log_info("transforms: {}", text);
    choice.report["sites"] = all;
    if (const Json missing = left_out(model_, recipe_); !missing.empty()) {
      choice.report["left_out"] = missing;
      for (const Json& one : missing)
        log_info("transforms: no {} at {}: {}", one.at("member").get<std::string>(),
                 one.at("site").get<std::string>(), one.at("reason").get<std::string>());
    }
  }

  const ModelConfig& model_;
  const Recipe& recipe_;
  std::span<const PlanVariant> variants_;
  std::span<const Sensitivities> measured_;  // by variant
  std::map<std::string, LinearCost> costs_;
  std::map<std::string, size_t> site_of_;
  std::vector<size_t> variant_of_;  // by site
  double weights_ = 0, bits_ = 0;   // of the layers' linears at 4 bits
  double read_ = 0;                 // bits that a token reads of them and of the head
};

}  // namespace

std::vector<size_t> choose_items(std::span<const PlanItem> items, double budget) {
  std::vector<size_t> order(items.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::erase_if(order, [&](size_t item) { return !(items[item].gain > 0); });
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return items[a].gain * items[b].cost > items[b].gain * items[a].cost;  // costs may be 0
  });
  std::vector<bool> taken(items.size());
  double left = budget;
  for (const size_t item : order) {
    const size_t after = items[item].after;
    if (items[item].cost > left || (after != PlanItem::kNothing && !taken[after])) continue;
    left -= items[item].cost;
    taken[item] = true;
  }
  std::vector<size_t> numbers;
  for (size_t item = 0; item < items.size(); ++item)
    if (taken[item]) numbers.push_back(item);
  return numbers;
}

double transform_price(const Transform& transform, int64_t width) {
  const auto values = static_cast<double>(width);
  if (transform.kind == "none") return 0;
  if (transform.kind == "block") return 16.0 * values * static_cast<double>(transform.order);
  const HadamardOrder order = factor_hadamard_order(transform.order);
  const double operations = order.power + (order.base > 1 ? static_cast<double>(order.base) : 0.0);
  return 2 * values * operations;
}

std::vector<PlanVariant> plan_variants(const ModelConfig& model, const Recipe& recipe) {
  std::vector<PlanVariant> variants;
  const Recipe own = planned(recipe, model);
  if (!recipe.plan.transforms) return {{own, plan_quantization(model, own).config}};
  require(model.moe.experts == 0,
          "recipe {}: plan.transforms chooses by site, and experts share the transforms of their inputs: it "
          "is not supported for a mixture of experts ({})",
          recipe.name, model.architecture);
  for (const char* kind : kMembers) {
    Recipe variant = own;
    give(variant.transform, kind, model);
    variants.push_back({variant, plan_quantization(model, variant).config});
  }
  return variants;
}

QuantizationChoice choose_plan(const ModelConfig& model, const Recipe& recipe,
                               std::span<const PlanVariant> variants,
                               std::span<const Sensitivities> measured) {
  return Planner(model, recipe, variants, measured).run();
}

Json left_out(const ModelConfig& model, const Recipe& recipe) {
  Json all = Json::array();
  const auto look = [&](const char* site, int64_t width, int64_t block) {
    if (!has_blocks(width, block))
      all.push_back({{"site", site},
                     {"member", kBlocks},
                     {"reason", fmt::format("no block of 16 columns or more divides its {} inputs", width)}});
  };
  look("qkv", model.hidden, recipe.transform.inputs_block);
  look("gate_up", model.hidden, recipe.transform.inputs_block);
  look("down", model.intermediate, recipe.transform.down_block);
  return all;
}

Recipe planned(Recipe recipe, const ModelConfig& model) {
  if (!recipe.plan.asked()) return recipe;
  recipe.residual.budget = 0;
  recipe.residual.scope = "matrix";
  if (recipe.plan.max_slowdown > 0) recipe.activations.layers8 = "none";
  if (recipe.plan.transforms) {
    give(recipe.transform, kBlocks, model);
  }
  recipe.plan = {};
  return recipe;
}

}  // namespace quatrain
