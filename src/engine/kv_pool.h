// KV memory: pages that hold 64 tokens of every layer, handed out from a free list.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "ops/kv_cache.h"

namespace quatrain {

/// Tokens that are kept unquantised too: the first ones of a sequence, and the last ones before (and with)
/// any token that reads them.
struct ExactTokens {
  int64_t sink = 0, recent = 0;
  bool any() const { return sink > 0 || recent > 0; }
};

/// One sequence's tokens: page i holds positions [64 i, 64 i + 64).
struct KvSequence {
  std::vector<std::byte*> pages;
  std::vector<std::byte*> exact;  // unquantised pages of the same numbers; nullptr where none is held
  int64_t length = 0;
};

/// Consecutive tokens of one sequence: they become its tokens [position, position + tokens.size()), whose
/// pages are reserved already.
struct Slice {
  const KvSequence* sequence = nullptr;
  int64_t position = 0;
  std::span<const int32_t> tokens;
};

/// Where pages come from. They stay where they are, and are the memory's until it ends.
class PageMemory {
 public:
  virtual ~PageMemory() = default;
  /// A page of zeros: slots past a sequence's end must hold finite numbers. Throws when there is no room.
  virtual std::byte* new_page() = 0;
  /// How many more there is room for.
  virtual int64_t room() const = 0;
};

/// Pages in the machine's memory, one allocation each. room() counts each with `beside` bytes that others
/// will take.
std::unique_ptr<PageMemory> host_pages(size_t page_bytes, size_t beside = 0);

class KvPool {
 public:
  /// `tokens` that all sequences together may hold, in whole pages; 0: as many as free memory holds.
  KvPool(size_t page_bytes, int64_t tokens) : KvPool(host_pages(page_bytes), tokens) {}
  KvPool(std::unique_ptr<PageMemory> memory, int64_t tokens);
  /// With unquantised pages for `exact`. They come on top of `tokens`; without that limit, room is counted as
  /// if every page had one.
  KvPool(size_t page_bytes, int64_t tokens, size_t exact_page_bytes, ExactTokens exact);

  int64_t add_sequence();
  void remove_sequence(int64_t id);
  /// Throws when there is no such sequence.
  KvSequence& sequence(int64_t id);
  const KvSequence& sequence(int64_t id) const;

  /// Gives the sequence pages for `length` tokens in all. Throws when memory or the limit does not allow it;
  /// the sequence is then as it was.
  void reserve(KvSequence& sequence, int64_t length);
  /// Drops the tokens from `length` on and frees their pages. Throws where length is not cuttable().
  void truncate(KvSequence& sequence, int64_t length);
  /// The most tokens, at most `length`, that the sequence can be cut to: what a token after them reads
  /// unquantised must still be held.
  int64_t cuttable(const KvSequence& sequence, int64_t length) const;

  const ExactTokens& exact() const { return exact_; }
  /// Gives the sequence unquantised pages for what it keeps of positions [begin, end), whose pages are
  /// reserved. Throws when memory does not allow it.
  void hold_exact(KvSequence& sequence, int64_t begin, int64_t end);
  /// Frees unquantised pages that neither the tokens after the last one read nor those after `base`, to which
  /// the sequence may have to return.
  void trim_exact(KvSequence& sequence, int64_t base);
  int64_t exact_pages_in_use() const { return exact_in_use_; }

  int64_t pages_in_use() const { return in_use_; }
  /// The limit, or how many pages memory has room for now.
  int64_t pages_in_all() const;

 private:
  std::byte* take_page();
  void free_exact(std::byte*& page);

  std::unique_ptr<PageMemory> memory_;
  std::unique_ptr<PageMemory> exact_memory_;
  ExactTokens exact_;
  std::vector<std::byte*> free_exact_;
  int64_t exact_in_use_ = 0;
  int64_t most_pages_;  // 0: no limit but memory
  int64_t in_use_ = 0;
  int64_t next_id_ = 1;
  std::vector<std::byte*> free_;  // pages given back
  std::unordered_map<int64_t, KvSequence> sequences_;
};

}  // namespace quatrain
