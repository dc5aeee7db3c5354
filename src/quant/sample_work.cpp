#include "quant/sample_work.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <map>
#include <mutex>
#include <system_error>

#include "base/error.h"
#include "quant/reference/fake_quantize.h"

namespace quatrain {
namespace {

// Lets the samples in one after the other.
class Turns {
 public:
  /// False when a sample failed: then nobody's turn comes.
  bool wait(size_t sample) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return failed_ || next_ == sample; });
    return !failed_;
  }
  void pass() {
    const std::lock_guard lock(mutex_);
    ++next_;
    changed_.notify_all();
  }
  void fail() {
    const std::lock_guard lock(mutex_);
    failed_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t next_ = 0;
  bool failed_ = false;
};

// The mapped ranges that are alive: begin, end.
std::mutex mapped_mutex;
std::map<uintptr_t, uintptr_t> mapped;

std::string system_message(int code) {
  return std::generic_category().message(code);
}

void* map_scratch(const fs::path& folder, size_t size) {
  std::string name = (folder / "scratch-XXXXXX").string();
  const int descriptor = ::mkostemp(name.data(), O_CLOEXEC);
  require(descriptor >= 0, "{}: cannot create a scratch file: {}", folder.string(), system_message(errno));
  ::unlink(name.c_str());
  // Reserved, not sparse: a full disk is an error here instead of a signal at some later write.
  const int full = ::posix_fallocate(descriptor, 0, static_cast<off_t>(size));
  void* map =
      full == 0 ? ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0) : MAP_FAILED;
  const int code = full != 0 ? full : errno;
  ::close(descriptor);
  require(map != MAP_FAILED, "{}: {:.0f} MiB for hidden states of the calibration: {}", folder.string(),
          static_cast<double>(size) / 0x1p20, system_message(code));
  const std::lock_guard lock(mapped_mutex);
  const auto begin = reinterpret_cast<uintptr_t>(map);
  mapped[begin] = begin + size;
  return map;
}

void unmap_scratch(void* map, size_t size) {
  {
    const std::lock_guard lock(mapped_mutex);
    mapped.erase(reinterpret_cast<uintptr_t>(map));
  }
  ::munmap(map, size);
}

}  // namespace

void SampleWork::each(size_t samples, const std::function<void(size_t, const InOrder&)>& body) const {
  Turns turns;
  const auto run = [&](size_t sample) {
    const c10::InferenceMode inference;
    bool done = false;
    const InOrder in_order = [&](const std::function<void()>& part) {
      if (!turns.wait(sample)) return;
      part();
      turns.pass();
      done = true;
    };
    try {
      body(sample, in_order);
      settle_checks();
      if (!done && turns.wait(sample)) turns.pass();
    } catch (...) {
      forget_checks();
      turns.fail();
      throw;
    }
  };
  if (pool_ == nullptr || !device_.is_cpu()) {
    for (size_t sample = 0; sample < samples; ++sample) run(sample);
    return;
  }
  pool_->parallel_for(static_cast<int64_t>(samples), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t sample = begin; sample < end; ++sample) run(static_cast<size_t>(sample));
  });
}

std::vector<torch::Tensor> SampleWork::rows(const std::vector<torch::Tensor>& like, int64_t width) const {
  int64_t tokens = 0;
  for (const torch::Tensor& x : like) tokens += x.size(0);
  const uint64_t bytes = static_cast<uint64_t>(tokens) * static_cast<uint64_t>(width) * sizeof(float);
  torch::Tensor all;
  if (bytes <= kResident || scratch_.empty() || !device_.is_cpu()) {
    all = torch::empty({tokens, width}, torch::TensorOptions(torch::kFloat).device(device_));
  } else {
    void* map = map_scratch(scratch_, bytes);
    all = torch::from_blob(
        map, {tokens, width}, [bytes](void* at) { unmap_scratch(at, bytes); }, torch::kFloat);
  }
  std::vector<torch::Tensor> rows;
  for (int64_t first = 0; const torch::Tensor& x : like) {
    rows.push_back(all.slice(0, first, first + x.size(0)));
    first += x.size(0);
  }
  return rows;
}

void SampleWork::rest(const torch::Tensor& rows) {
  if (!rows.is_cpu()) return;
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(rows.data_ptr()), end = begin + rows.nbytes();
  {
    const std::lock_guard lock(mapped_mutex);
    auto range = mapped.upper_bound(begin);
    if (range == mapped.begin() || (--range)->second < end) return;
  }
  // Pages that a neighbour shares go too: of a shared map only the view is lost, never what was written.
  const uintptr_t first = begin / page * page;
  ::madvise(reinterpret_cast<void*>(first), (end - first + page - 1) / page * page, MADV_DONTNEED);
}

SampleBatches batched(const std::vector<std::vector<int32_t>>& samples, int64_t most) {
  const auto differs = [&](const std::vector<int32_t>& ids) { return ids.size() != samples[0].size(); };
  if (most <= 1 || std::any_of(samples.begin(), samples.end(), differs)) return {samples, 0};
  SampleBatches batches;
  batches.sequence = samples.empty() ? 0 : std::ssize(samples[0]);
  for (size_t s = 0; s < samples.size(); ++s) {
    if (s % static_cast<size_t>(most) == 0) batches.ids.emplace_back();
    batches.ids.back().insert(batches.ids.back().end(), samples[s].begin(), samples[s].end());
  }
  return batches;
}

}  // namespace quatrain
