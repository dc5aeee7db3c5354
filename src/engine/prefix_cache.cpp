#include "engine/prefix_cache.h"

#include <algorithm>
#include <utility>

#include "ops/kv_cache.h"

namespace quatrain {

int64_t pages_of(int64_t tokens) {
  return tokens / ops::kPageTokens + (tokens % ops::kPageTokens != 0 ? 1 : 0);
}

PrefixCache::~PrefixCache() {
  while (evict()) {
  }
}

void PrefixCache::put(int64_t sequence, std::vector<int32_t> tokens) {
  entries_.push_back({sequence, std::move(tokens)});
}

std::optional<PrefixCache::Match> PrefixCache::take(std::span<const int32_t> prompt) {
  if (prompt.size() < 2) return std::nullopt;
  const auto usable = prompt.first(prompt.size() - 1);
  auto best = entries_.end();
  int64_t longest = 0;
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    const auto end = std::ranges::mismatch(usable, entry->tokens).in1;
    const int64_t common = engine_.reusable(entry->sequence, end - usable.begin());
    if (common > longest && 2 * common >= std::ssize(entry->tokens)) best = entry, longest = common;
  }
  if (best == entries_.end()) return std::nullopt;
  const Match match{best->sequence, longest};
  entries_.erase(best);
  engine_.truncate(match.sequence, match.tokens);
  return match;
}

bool PrefixCache::evict() {
  if (entries_.empty()) return false;
  engine_.free_sequence(entries_.front().sequence);
  entries_.pop_front();
  return true;
}

int64_t PrefixCache::pages() const {
  int64_t pages = 0;
  for (const Entry& entry : entries_) pages += pages_of(std::ssize(entry.tokens));
  return pages;
}

}  // namespace quatrain
