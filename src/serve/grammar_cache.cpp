#include "serve/grammar_cache.h"

#include <algorithm>

namespace quatrain {
namespace {

constexpr size_t kMostEntries = 32;
constexpr int64_t kMostStates = 20'000;  // a grammar that has grown beyond is made anew

}  // namespace

std::shared_ptr<MaskedGrammar> GrammarCache::get(const std::string& key,
                                                 const std::function<Grammar()>& build) {
  std::shared_ptr<const TokenTable> table;
  {
    const std::lock_guard lock(mutex_);
    if (!table_) table_ = std::make_shared<TokenTable>(tokenizer_, vocabulary_);
    table = table_;
    const auto found = std::ranges::find_if(entries_, [&](const auto& entry) { return entry.first == key; });
    if (found != entries_.end()) {
      if (found->second->states() <= kMostStates) {
        entries_.splice(entries_.begin(), entries_, found);
        return found->second;
      }
      entries_.erase(found);
    }
  }
  auto grammar = std::make_shared<MaskedGrammar>(build(), std::move(table));
  const std::lock_guard lock(mutex_);
  entries_.emplace_front(key, grammar);
  if (entries_.size() > kMostEntries) entries_.pop_back();
  return grammar;
}

}  // namespace quatrain
