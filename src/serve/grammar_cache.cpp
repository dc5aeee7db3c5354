#include "serve/grammar_cache.h"

#include <algorithm>

namespace quatrain {
namespace {

constexpr size_t kMostEntries = 32;
// A grammar that has grown beyond is made anew. A state is a kilobyte, so the entries stay below 320 MB.
constexpr int64_t kMostStates = 10'000;

}  // namespace

std::shared_ptr<MaskedGrammar> GrammarCache::get(const std::string& key,
                                                 const std::function<Grammar()>& build) {
  std::shared_ptr<const TokenTable> table;
  {
    const std::lock_guard lock(mutex_);
    if (!table_) table_ = std::make_shared<TokenTable>(tokenizer_, vocabulary_);
    table = table_;
    const auto found = std::ranges::find_if(entries_, [&](const auto& entry) { return entry.first == key; });
    if (found != entries_.end() && found->second->states() <= kMostStates) {
      entries_.splice(entries_.begin(), entries_, found);
      return found->second;
    }
  }
  auto grammar = std::make_shared<MaskedGrammar>(build(), std::move(table));
  const std::lock_guard lock(mutex_);
  std::erase_if(entries_, [](const auto& entry) { return entry.second->states() > kMostStates; });
  entries_.emplace_front(key, grammar);
  if (entries_.size() > kMostEntries) entries_.pop_back();
  return grammar;
}

}  // namespace quatrain
