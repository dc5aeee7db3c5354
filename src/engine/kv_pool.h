// KV memory: pages that hold 64 tokens of every layer, handed out from a free list.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "base/buffer.h"
#include "ops/kv_cache.h"

namespace quatrain {

/// One sequence's tokens: page i holds positions [64 i, 64 i + 64).
struct KvSequence {
  std::vector<std::byte*> pages;
  int64_t length = 0;
};

class KvPool {
 public:
  /// `tokens` that all sequences together may hold, in whole pages; 0: as many as free memory holds.
  KvPool(size_t page_bytes, int64_t tokens);

  int64_t add_sequence();
  void remove_sequence(int64_t id);
  /// Throws when there is no such sequence.
  KvSequence& sequence(int64_t id);
  const KvSequence& sequence(int64_t id) const;

  /// Gives the sequence pages for `length` tokens in all. Throws when memory or the limit does not allow it;
  /// the sequence is then as it was.
  void reserve(KvSequence& sequence, int64_t length);
  /// Drops the tokens from `length` on and frees their pages.
  void truncate(KvSequence& sequence, int64_t length);

  int64_t pages_in_use() const { return in_use_; }
  /// The limit, or how many pages memory has room for now.
  int64_t pages_in_all() const;

 private:
  std::byte* take_page();

  size_t page_bytes_;
  int64_t most_pages_;  // 0: no limit but memory
  int64_t in_use_ = 0;
  int64_t next_id_ = 1;
  std::vector<AlignedBuffer<std::byte>> memory_;  // one page each, kept until the pool ends
  std::vector<std::byte*> free_;
  std::unordered_map<int64_t, KvSequence> sequences_;
};

}  // namespace quatrain
