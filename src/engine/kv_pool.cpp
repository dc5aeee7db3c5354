#include "engine/kv_pool.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <new>
#include <string>

#include "base/error.h"
#include "ops/cpu/nibble_memory.h"

namespace quatrain {
namespace {

using ops::kPageTokens;

constexpr size_t kMemoryReserve = size_t{256} << 20;  // left for everything else when the cache grows

// Tokens beyond the recent ones whose unquantised pages are kept, so that a sequence may be cut back a
// little.
constexpr int64_t kExactSlack = 256;

int64_t pages_for(int64_t tokens) {
  return tokens / kPageTokens + (tokens % kPageTokens != 0 ? 1 : 0);  // of any number, the largest too
}

// Memory that can be had without swapping; the largest value where the system does not say.
size_t available_memory() {
  std::ifstream info("/proc/meminfo");
  std::string key, unit;
  for (size_t kilobytes = 0; info >> key >> kilobytes; std::getline(info, unit))
    if (key == "MemAvailable:") return kilobytes << 10;
  return std::numeric_limits<size_t>::max();
}

class HostPages : public PageMemory {
 public:
  HostPages(size_t page_bytes, size_t beside) : page_bytes_(page_bytes), beside_(beside) {}

  std::byte* new_page() override {
    require(page_bytes_ + kMemoryReserve <= available_memory(),
            "no memory for another KV page of {} bytes after {} pages; use fewer or shorter sequences",
            page_bytes_, pages_.size());
    try {
      pages_.push_back(ops::allocate_packed(page_bytes_));  // where attention misses fewer TLB entries
    } catch (const std::bad_alloc&) {
      fail("no memory for another KV page of {} bytes after {} pages; use fewer or shorter sequences",
           page_bytes_, pages_.size());
    }
    return reinterpret_cast<std::byte*>(pages_.back().get());
  }

  int64_t room() const override {
    const size_t available = available_memory();
    const size_t more =
        available > kMemoryReserve ? (available - kMemoryReserve) / (page_bytes_ + beside_) : 0;
    // 2^32 pages are more than any memory holds: where the system does not say what it has, that is the
    // limit.
    return static_cast<int64_t>(std::min(more, size_t{1} << 32));
  }

 private:
  size_t page_bytes_, beside_;
  std::vector<std::shared_ptr<uint8_t>> pages_;
};

}  // namespace

std::unique_ptr<PageMemory> host_pages(size_t page_bytes, size_t beside) {
  return std::make_unique<HostPages>(page_bytes, beside);
}

KvPool::KvPool(std::unique_ptr<PageMemory> memory, int64_t tokens)
    : memory_(std::move(memory)), most_pages_(pages_for(tokens)) {
  require(tokens >= 0, "KV tokens: {} is negative", tokens);
}

KvPool::KvPool(size_t page_bytes, int64_t tokens, size_t exact_page_bytes, ExactTokens exact)
    : KvPool(host_pages(page_bytes, exact.any() ? exact_page_bytes : 0), tokens) {
  require(exact.sink >= 0 && exact.recent >= 0, "unquantised KV tokens: {} and {} must not be negative",
          exact.sink, exact.recent);
  if (exact_page_bytes == 0) return;  // every layer is unquantised anyway
  exact_ = exact;
  if (exact.any()) exact_memory_ = host_pages(exact_page_bytes);
}

int64_t KvPool::add_sequence() {
  sequences_[next_id_];
  return next_id_++;
}

void KvPool::remove_sequence(int64_t id) {
  truncate(sequence(id), 0);
  sequences_.erase(id);
}

KvSequence& KvPool::sequence(int64_t id) {
  const auto found = sequences_.find(id);
  require(found != sequences_.end(), "sequence {} does not exist", id);
  return found->second;
}

const KvSequence& KvPool::sequence(int64_t id) const {
  return const_cast<KvPool*>(this)->sequence(id);
}

std::byte* KvPool::take_page() {
  require(
      most_pages_ == 0 || in_use_ < most_pages_,
      "the KV cache is full: all {} pages of {} tokens are in use; end a sequence or allow more KV tokens",
      most_pages_, ops::kPageTokens);
  if (free_.empty()) free_.push_back(memory_->new_page());
  std::byte* page = free_.back();
  free_.pop_back();
  ++in_use_;
  return page;
}

int64_t KvPool::pages_in_all() const {
  if (most_pages_ > 0) return most_pages_;
  return in_use_ + std::ssize(free_) + memory_->room();
}

void KvPool::reserve(KvSequence& sequence, int64_t length) {
  const size_t before = sequence.pages.size();
  try {
    while (std::ssize(sequence.pages) < pages_for(length)) sequence.pages.push_back(take_page());
  } catch (const Error&) {
    for (; sequence.pages.size() > before; sequence.pages.pop_back(), --in_use_)
      free_.push_back(sequence.pages.back());
    throw;
  }
}

void KvPool::truncate(KvSequence& sequence, int64_t length) {
  require(length >= 0 && length <= sequence.length, "a sequence of {} tokens cannot be cut to {}",
          sequence.length, length);
  require(cuttable(sequence, length) == length,
          "a sequence of {} tokens cannot be cut to {}: the unquantised keys and values before it are gone",
          sequence.length, length);
  sequence.length = length;
  for (; std::ssize(sequence.exact) > pages_for(length); sequence.exact.pop_back())
    free_exact(sequence.exact.back());
  for (; std::ssize(sequence.pages) > pages_for(length); sequence.pages.pop_back(), --in_use_)
    free_.push_back(sequence.pages.back());
}

int64_t KvPool::cuttable(const KvSequence& sequence, int64_t length) const {
  if (length >= sequence.length || exact_.recent == 0) return length;
  for (int64_t page = std::max<int64_t>(0, length - exact_.recent) / kPageTokens; page < pages_for(length);
       ++page)
    if (sequence.exact[static_cast<size_t>(page)] == nullptr) return std::min(length, exact_.sink);
  return length;
}

void KvPool::free_exact(std::byte*& page) {
  if (page == nullptr) return;
  free_exact_.push_back(page);
  page = nullptr;
  --exact_in_use_;
}

void KvPool::hold_exact(KvSequence& sequence, int64_t begin, int64_t end) {
  if (!exact_.any()) return;
  sequence.exact.resize(sequence.pages.size(), nullptr);
  if (exact_.recent == 0) end = std::min(end, exact_.sink);
  for (int64_t page = begin / kPageTokens; page < pages_for(end); ++page) {
    std::byte*& held = sequence.exact[static_cast<size_t>(page)];
    if (held != nullptr) continue;
    if (free_exact_.empty()) free_exact_.push_back(exact_memory_->new_page());
    held = free_exact_.back();
    free_exact_.pop_back();
    ++exact_in_use_;
  }
}

void KvPool::trim_exact(KvSequence& sequence, int64_t base) {
  for (int64_t page = 0; page < std::ssize(sequence.exact); ++page) {
    const int64_t begin = page * kPageTokens, end = begin + kPageTokens;
    const bool kept = begin < exact_.sink || end > sequence.length - exact_.recent - kExactSlack ||
                      (begin < base && end > base - exact_.recent);
    if (!kept) free_exact(sequence.exact[static_cast<size_t>(page)]);
  }
}

}  // namespace quatrain
