// A grammar as a machine that reads bytes. Its states are found as they are needed, and kept.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "serve/grammar/grammar.h"

namespace quatrain {

/// Used by one thread at a time.
class GrammarAutomaton {
 public:
  using State = int32_t;
  static constexpr State kDead = -1;

  /// Throws when no finite text belongs to the grammar.
  explicit GrammarAutomaton(Grammar grammar);

  State start() const { return start_; }
  /// The state after one more byte; kDead when nothing begins so.
  State next(State state, uint8_t byte);
  /// The text so far is complete.
  bool accepts(State state) const { return states_[static_cast<size_t>(state)].accepts; }
  /// No byte may follow.
  bool ends(State state) const { return states_[static_cast<size_t>(state)].stacks.empty(); }
  /// Bytes of the shortest text that completes it.
  int64_t shortest(State state) const { return states_[static_cast<size_t>(state)].shortest; }
  int64_t states() const { return static_cast<int64_t>(states_.size()); }

 private:
  // A node and, as another stack, where to go on when its rule ends; -1: nowhere. Equal stacks have one id.
  using Stack = int32_t;
  struct StackData {
    Grammar::Node node;
    Stack below;
    int64_t shortest;
  };
  struct StateData {
    std::vector<Stack> stacks;  // those that can read a byte, in order
    bool accepts;
    int64_t shortest;
    std::unique_ptr<std::array<State, 256>> next;
  };

  void measure();
  Stack stack(Grammar::Node node, Stack below);
  void close(Stack stack, std::vector<Stack>& out, bool& accepts);
  State state(const std::vector<Stack>& kernel);
  State compute_next(State state, uint8_t byte);

  Grammar grammar_;
  std::vector<int64_t> shortest_;  // of each node, to the end of its rule
  std::vector<StackData> stacks_;
  std::unordered_map<uint64_t, Stack> stack_ids_;
  std::vector<StateData> states_;
  std::map<std::vector<Stack>, State> state_ids_;  // by kernel
  std::vector<int32_t> seen_;                      // of each stack, the closure that met it last
  int32_t closures_ = 0;
  State start_;
};

}  // namespace quatrain
