#include "serve/grammar/token_masks.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "base/error.h"

namespace quatrain {

TokenTable::TokenTable(const Tokenizer& tokenizer, int64_t vocabulary)
    : by_id_(static_cast<size_t>(vocabulary), -1) {
  std::vector<std::pair<std::string, int32_t>> sorted;
  for (int32_t id = 0; id < std::min(vocabulary, tokenizer.size()); ++id) {
    if (tokenizer.is_special(id)) continue;
    std::string text = tokenizer.token_bytes(id);
    if (!text.empty()) sorted.emplace_back(std::move(text), id);
  }
  std::sort(sorted.begin(), sorted.end());
  const std::string* before = nullptr;
  for (const auto& [text, id] : sorted) {
    const auto shared = before == nullptr ? 0 : std::ranges::mismatch(*before, text).in1 - before->begin();
    by_id_[static_cast<size_t>(id)] = static_cast<int32_t>(tokens_.size());
    tokens_.push_back({id, static_cast<uint32_t>(bytes_.size()), static_cast<uint32_t>(text.size()),
                       static_cast<uint32_t>(shared)});
    bytes_.insert(bytes_.end(), text.begin(), text.end());
    longest_ = std::max(longest_, static_cast<uint32_t>(text.size()));
    before = &text;
  }
}

std::span<const uint8_t> TokenTable::bytes(int32_t id) const {
  const int32_t index = id >= 0 && id < vocabulary() ? by_id_[static_cast<size_t>(id)] : -1;
  if (index < 0) return {};
  const Token& token = tokens_[static_cast<size_t>(index)];
  return {bytes_.data() + token.offset, token.size};
}

// Calls visit(id, state after the token) for every token that the grammar allows.
template <typename Visit>
void MaskedGrammar::walk(GrammarAutomaton::State state, Visit&& visit) {
  std::vector<GrammarAutomaton::State> path(table_->longest() + 1);
  path[0] = state;
  uint32_t alive = 0;  // bytes of the token walked last that the grammar allowed
  for (const TokenTable::Token& token : table_->tokens()) {
    if (token.shared > alive) continue;  // it has the byte that was not allowed
    for (alive = token.shared; alive < token.size; ++alive) {
      const auto next = automaton_.next(path[alive], table_->data()[token.offset + alive]);
      if (next == GrammarAutomaton::kDead) break;
      path[alive + 1] = next;
    }
    if (alive == token.size) visit(token.id, path[alive]);
  }
}

const std::vector<uint64_t>& MaskedGrammar::allowed(GrammarAutomaton::State state, int64_t left) {
  const size_t words = (static_cast<size_t>(table_->vocabulary()) + 63) / 64;
  const auto set = [](std::vector<uint64_t>& bits, int32_t id) {
    bits[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64);
  };
  const auto [found, added] = masks_.try_emplace(state);
  Mask& mask = found->second;
  if (added) {
    mask.allowed.assign(words, 0);
    walk(state, [&](int32_t id, GrammarAutomaton::State after) {
      set(mask.allowed, id);
      mask.most_left = std::max(mask.most_left, automaton_.shortest(after));
    });
  }
  states_ = automaton_.states();
  if (mask.most_left <= left) return mask.allowed;
  int64_t least = std::numeric_limits<int64_t>::max();
  walk(state,
       [&](int32_t, GrammarAutomaton::State after) { least = std::min(least, automaton_.shortest(after)); });
  tight_.assign(words, 0);
  walk(state, [&](int32_t id, GrammarAutomaton::State after) {
    if (automaton_.shortest(after) <= std::max(left, least)) set(tight_, id);
  });
  return tight_;
}

void GrammarConstraint::mask(std::span<float> logits, int64_t left) {
  const bool complete = grammar_->automaton().accepts(state_);
  std::vector<std::pair<int32_t, float>> stops;
  if (complete)
    for (const int32_t id : stop_ids_)
      if (id >= 0 && static_cast<size_t>(id) < logits.size())
        stops.emplace_back(id, logits[static_cast<size_t>(id)]);
  const std::vector<uint64_t>& allowed = grammar_->allowed(state_, left - 1);
  bool any = !stops.empty();
  for (size_t i = 0; i < logits.size(); ++i) {
    const bool may = i / 64 < allowed.size() && (allowed[i / 64] >> (i % 64) & 1) != 0;
    any |= may;
    if (!may) logits[i] = -INFINITY;
  }
  require(any, "the vocabulary has no token that could continue the text in its grammar");
  for (const auto& [id, logit] : stops) logits[static_cast<size_t>(id)] = logit;
}

bool GrammarConstraint::accept(int32_t token) {
  for (const uint8_t byte : grammar_->table().bytes(token)) {
    state_ = grammar_->automaton().next(state_, byte);
    require(state_ != GrammarAutomaton::kDead, "token {} does not fit the grammar", token);
  }
  return grammar_->automaton().accepts(state_) && grammar_->automaton().ends(state_);
}

}  // namespace quatrain
