#include "serve/grammar/automaton.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"

namespace quatrain {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max() / 4;
constexpr size_t kMostStates = 200'000, kMostStacks = 2'000'000;
constexpr GrammarAutomaton::State kUnknown = -2;

}  // namespace

GrammarAutomaton::GrammarAutomaton(Grammar grammar) : grammar_(std::move(grammar)) {
  measure();
  start_ = state({stack(grammar_.start, -1)});
  require(start_ != kDead, "no finite text satisfies the schema");
}

// Least fixed point: lengths only fall, and each pass makes at least one final.
void GrammarAutomaton::measure() {
  const auto& nodes = grammar_.nodes;
  shortest_.assign(nodes.size(), kNever);
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t i = nodes.size(); i-- > 0;) {
      int64_t best = nodes[i].final ? 0 : kNever;
      for (const auto& edge : nodes[i].bytes)
        best = std::min(best, 1 + shortest_[static_cast<size_t>(edge.target)]);
      for (const auto target : nodes[i].epsilons)
        best = std::min(best, shortest_[static_cast<size_t>(target)]);
      for (const auto& call : nodes[i].calls)
        best = std::min(best, shortest_[static_cast<size_t>(call.rule)] +
                                  shortest_[static_cast<size_t>(call.continue_at)]);
      best = std::min(best, kNever);
      if (best < shortest_[i]) shortest_[i] = best, changed = true;
    }
  }
}

GrammarAutomaton::Stack GrammarAutomaton::stack(Grammar::Node node, Stack below) {
  // A rule that ends at once when it comes back needs no place on the stack.
  const auto& data = grammar_.nodes[static_cast<size_t>(node)];
  if (below >= 0 && data.final && data.bytes.empty() && data.calls.empty() && data.epsilons.empty())
    return below;
  const uint64_t key =
      (static_cast<uint64_t>(static_cast<uint32_t>(node)) << 32) | static_cast<uint32_t>(below);
  const auto [found, added] = stack_ids_.try_emplace(key, static_cast<Stack>(stacks_.size()));
  if (added) {
    require(stacks_.size() < kMostStacks, "the schema is too complex: its texts are nested too deeply");
    const int64_t rest = below < 0 ? 0 : stacks_[static_cast<size_t>(below)].shortest;
    stacks_.push_back({node, below, std::min(kNever, shortest_[static_cast<size_t>(node)] + rest)});
    seen_.push_back(0);
  }
  return found->second;
}

// Everything that a stack can become without a byte.
void GrammarAutomaton::close(Stack first, std::vector<Stack>& out, bool& accepts) {
  std::vector<Stack> open = {first};
  while (!open.empty()) {
    const Stack top = open.back();
    open.pop_back();
    if (std::exchange(seen_[static_cast<size_t>(top)], closures_) == closures_) continue;
    const StackData current = stacks_[static_cast<size_t>(top)];
    if (current.shortest >= kNever) continue;
    const auto& data = grammar_.nodes[static_cast<size_t>(current.node)];
    if (data.final) {
      if (current.below < 0)
        accepts = true;
      else
        open.push_back(current.below);
    }
    for (const auto target : data.epsilons) open.push_back(stack(target, current.below));
    for (const auto& call : data.calls)
      open.push_back(stack(call.rule, stack(call.continue_at, current.below)));
    if (!data.bytes.empty()) out.push_back(top);
  }
}

GrammarAutomaton::State GrammarAutomaton::state(const std::vector<Stack>& kernel) {
  const auto [found, added] = state_ids_.try_emplace(kernel, static_cast<State>(states_.size()));
  if (!added) return found->second;
  require(states_.size() < kMostStates, "the schema is too complex: more than {} states", kMostStates);
  StateData data{{}, false, kNever, nullptr};
  ++closures_;
  for (const Stack stack : kernel) close(stack, data.stacks, data.accepts);
  std::sort(data.stacks.begin(), data.stacks.end());
  if (data.accepts) data.shortest = 0;
  for (const Stack stack : data.stacks)
    data.shortest = std::min(data.shortest, stacks_[static_cast<size_t>(stack)].shortest);
  if (data.shortest >= kNever) return found->second = kDead;
  states_.push_back(std::move(data));
  return found->second;
}

GrammarAutomaton::State GrammarAutomaton::next(State from, uint8_t byte) {
  auto& table = states_[static_cast<size_t>(from)].next;
  if (!table) {
    table = std::make_unique<std::array<State, 256>>();
    table->fill(kUnknown);
  }
  State known = (*table)[byte];
  if (known == kUnknown) {
    known = compute_next(from, byte);
    (*states_[static_cast<size_t>(from)].next)[byte] = known;  // states_ may have moved
  }
  return known;
}

GrammarAutomaton::State GrammarAutomaton::compute_next(State from, uint8_t byte) {
  std::vector<Stack> kernel;
  for (const Stack top : std::vector<Stack>(states_[static_cast<size_t>(from)].stacks)) {
    const StackData current = stacks_[static_cast<size_t>(top)];
    for (const auto& edge : grammar_.nodes[static_cast<size_t>(current.node)].bytes)
      if (edge.low <= byte && byte <= edge.high) kernel.push_back(stack(edge.target, current.below));
  }
  if (kernel.empty()) return kDead;
  std::sort(kernel.begin(), kernel.end());
  kernel.erase(std::unique(kernel.begin(), kernel.end()), kernel.end());
  return state(kernel);
}

}  // namespace quatrain
