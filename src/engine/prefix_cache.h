// Finished sequences that keep their KV pages, so that a prompt with the same beginning need not run again.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <vector>

#include "engine/engine.h"

namespace quatrain {

class PrefixCache {
 public:
  explicit PrefixCache(Engine& engine) : engine_(engine) {}
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  /// Takes over a sequence that holds these tokens.
  void put(int64_t sequence, std::vector<int32_t> tokens);

  struct Match {
    int64_t sequence;
    int64_t tokens;
  };
  /// Hands out the sequence with the longest beginning in common with `prompt` (less its last token, whose
  /// logits are needed), cut to that beginning. What follows it in the cached sequence is lost, so none is
  /// handed out that would lose more tokens than it gives.
  std::optional<Match> take(std::span<const int32_t> prompt);

  /// Frees the sequence that was put longest ago. False when there is none.
  bool evict();
  int64_t pages() const;

 private:
  struct Entry {
    int64_t sequence;
    std::vector<int32_t> tokens;
  };
  Engine& engine_;
  std::list<Entry> entries_;  // the oldest first
};

/// Pages that `tokens` of one sequence take.
int64_t pages_of(int64_t tokens);

}  // namespace quatrain
