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

constexpr size_t kMemoryReserve = size_t{256} << 20;  // left for everything else when the cache grows

int64_t pages_for(int64_t tokens) {
  return (tokens + ops::kPageTokens - 1) / ops::kPageTokens;
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
  explicit HostPages(size_t page_bytes) : page_bytes_(page_bytes) {}

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
    const size_t more = available > kMemoryReserve ? (available - kMemoryReserve) / page_bytes_ : 0;
    // 2^32 pages are more than any memory holds: where the system does not say what it has, that is the
    // limit.
    return static_cast<int64_t>(std::min(more, size_t{1} << 32));
  }

 private:
  size_t page_bytes_;
  std::vector<std::shared_ptr<uint8_t>> pages_;
};

}  // namespace

std::unique_ptr<PageMemory> host_pages(size_t page_bytes) {
  return std::make_unique<HostPages>(page_bytes);
}

KvPool::KvPool(std::unique_ptr<PageMemory> memory, int64_t tokens)
    : memory_(std::move(memory)), most_pages_(pages_for(tokens)) {
  require(tokens >= 0, "KV tokens: {} is negative", tokens);
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
  sequence.length = length;
  for (; std::ssize(sequence.pages) > pages_for(length); sequence.pages.pop_back(), --in_use_)
    free_.push_back(sequence.pages.back());
}

}  // namespace quatrain
