#include "ops/cpu/nibble_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <mutex>
#include <new>

namespace quatrain::ops {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kRegion = size_t{16} << 20;
constexpr size_t kLine = 64;

size_t round_up(size_t size, size_t to) {
  return (size + to - 1) / to * to;
}

// An anonymous map, aligned to a huge page and advised to be huge.
class Region {
 public:
  explicit Region(size_t size) : size_(size), mapped_(size + kHugePage) {
    void* map = ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) throw std::bad_alloc();
    map_ = static_cast<uint8_t*>(map);
    const size_t address = reinterpret_cast<size_t>(map_);
    data_ = map_ + (round_up(address, kHugePage) - address);
    ::madvise(data_, size_, MADV_HUGEPAGE);  // refused where huge pages are off: 4 KB pages then
  }
  ~Region() { ::munmap(map_, mapped_); }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  uint8_t* data() { return data_; }
  size_t size() const { return size_; }

 private:
  size_t size_;
  size_t mapped_;
  uint8_t* map_ = nullptr;
  uint8_t* data_ = nullptr;
};

}  // namespace

std::shared_ptr<uint8_t> allocate_packed(size_t size) {
  if (size > PTRDIFF_MAX - 2 * kHugePage) throw std::bad_alloc();
  size = round_up(std::max<size_t>(size, 1), kLine);
  if (size > kRegion / 2) {
    const auto region = std::make_shared<Region>(round_up(size, kHugePage));
    return {region, region->data()};
  }
  static std::mutex mutex;
  static std::weak_ptr<Region> current;
  static size_t used = 0;
  std::lock_guard lock(mutex);
  std::shared_ptr<Region> region = current.lock();
  if (!region || region->size() - used < size) {
    region = std::make_shared<Region>(kRegion);
    current = region;
    used = 0;
  }
  uint8_t* data = region->data() + used;
  used += size;
  return {region, data};
}

}  // namespace quatrain::ops
