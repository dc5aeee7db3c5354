// Which tokens may come next in a grammar: a mask over the vocabulary for every state, found once.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/scheduler.h"
#include "serve/grammar/automaton.h"
#include "text/tokenizer.h"

namespace quatrain {

/// The bytes of all tokens but the special ones, in order, so that common beginnings are walked once.
class TokenTable {
 public:
  TokenTable(const Tokenizer& tokenizer, int64_t vocabulary);

  struct Token {
    int32_t id;
    uint32_t offset, size;  // in bytes()
    uint32_t shared;        // bytes in common with the token before
  };
  const std::vector<Token>& tokens() const { return tokens_; }
  std::span<const uint8_t> bytes(int32_t id) const;
  const uint8_t* data() const { return bytes_.data(); }
  int64_t vocabulary() const { return std::ssize(by_id_); }
  uint32_t longest() const { return longest_; }

 private:
  std::vector<uint8_t> bytes_;
  std::vector<Token> tokens_;
  std::vector<int32_t> by_id_;  // index in tokens_, or -1
  uint32_t longest_ = 0;
};

/// A grammar with its masks. Shared by the requests that use it; the scheduler's thread only, after
/// construction.
class MaskedGrammar {
 public:
  MaskedGrammar(Grammar grammar, std::shared_ptr<const TokenTable> table)
      : automaton_(std::move(grammar)), table_(std::move(table)) {}

  GrammarAutomaton& automaton() { return automaton_; }
  const TokenTable& table() const { return *table_; }
  /// Bit i % 64 of word i / 64: token i may follow, so that `left` tokens after it still complete the text
  /// (each byte has a token of its own). Where none does, those that leave the least to be written.
  const std::vector<uint64_t>& allowed(GrammarAutomaton::State state, int64_t left);
  /// How many states were found so far. Any thread.
  int64_t states() const { return states_; }

 private:
  struct Mask {
    std::vector<uint64_t> allowed;
    int64_t most_left = 0;  // the largest number of bytes that a token leaves to be written
  };
  template <typename Visit>
  void walk(GrammarAutomaton::State state, Visit&& visit);

  GrammarAutomaton automaton_;
  std::shared_ptr<const TokenTable> table_;
  std::unordered_map<GrammarAutomaton::State, Mask> masks_;
  std::vector<uint64_t> tight_;
  std::atomic<int64_t> states_{0};
};

/// One reply's place in a grammar.
class GrammarConstraint : public TokenConstraint {
 public:
  GrammarConstraint(std::shared_ptr<MaskedGrammar> grammar, std::vector<int32_t> stop_ids)
      : grammar_(std::move(grammar)), stop_ids_(std::move(stop_ids)), state_(grammar_->automaton().start()) {}

  void mask(std::span<float> logits, int64_t left) override;
  bool accept(int32_t token) override;

 private:
  std::shared_ptr<MaskedGrammar> grammar_;
  std::vector<int32_t> stop_ids_;
  GrammarAutomaton::State state_;
};

}  // namespace quatrain
