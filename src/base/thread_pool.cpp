#include "base/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <mutex>
#include <string>
#include <system_error>
#include <utility>

#include "base/affinity.h"
#include "base/error.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace quatrain {
namespace {

using Clock = std::chrono::steady_clock;

// Pausing costs a core that others may want, so it is short; yielding lets them run and still wakes within
// microseconds. Together they outlast the gaps inside a decode step.
constexpr auto kPauseTime = std::chrono::microseconds(50);
constexpr auto kYieldTime = std::chrono::microseconds(500);

// The pool whose loop body this thread is running and its number there, so that a nested loop is recognised.
struct Running {
  const void* pool = nullptr;
  int thread = 0;
};
thread_local Running running;

class RunningScope {
 public:
  RunningScope(const void* pool, int thread) : outer_(std::exchange(running, {pool, thread})) {}
  ~RunningScope() { running = outer_; }
  RunningScope(const RunningScope&) = delete;
  RunningScope& operator=(const RunningScope&) = delete;

 private:
  Running outer_;
};

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// Waits for `ready` by pausing, then by yielding. False when the time is up.
template <typename Ready>
bool spin_until(const Ready& ready, Clock::duration pause_time, Clock::duration yield_time) {
  for (int i = 0; i < 64; ++i) {
    if (ready()) return true;
    relax();
  }
  const auto start = Clock::now();
  for (;;) {
    const auto waited = Clock::now() - start;
    if (waited >= pause_time + yield_time) return ready();
    if (waited >= pause_time) std::this_thread::yield();
    for (int i = 0; i < 16; ++i) {
      if (ready()) return true;
      relax();
    }
  }
}

// Cores that a cgroup quota ("quota period" in v2; two files in v1) is worth; a huge number without a quota.
int cgroup_cores() {
  std::string quota, period;
  if (std::ifstream v2("/sys/fs/cgroup/cpu.max"); !(v2 >> quota >> period)) {
    std::ifstream("/sys/fs/cgroup/cpu/cpu.cfs_quota_us") >> quota;
    std::ifstream("/sys/fs/cgroup/cpu/cpu.cfs_period_us") >> period;
  }
  const double share = std::strtod(quota.c_str(), nullptr) / std::strtod(period.c_str(), nullptr);
  if (!(share > 0 && share < 1 << 20)) return 1 << 20;  // "max", -1, or no such file
  return static_cast<int>(share + 0.5);
}

}  // namespace

int available_cores() {
  const std::vector<int> processors = allowed_processors();
  const int cores = processors.empty() ? static_cast<int>(std::thread::hardware_concurrency())
                                       : count_physical_cores(processors);
  return std::max(1, std::min(cores, cgroup_cores()));
}

// A loop is published as one word, chunks << 32 | next chunk. A chunk is claimed by advancing the word; the
// other fields are read only after a claim and change only when no claimed chunk is unfinished, so a worker
// that wakes late finds either nothing to claim or a chunk of the loop that is running by then.
struct ThreadPool::Loop {
  alignas(64) std::atomic<uint64_t> word{0};
  alignas(64) std::atomic<int64_t> unfinished{0};
  int64_t count = 0;
  int64_t grain = 1;
  const std::function<void(int64_t, int64_t, int)>* body = nullptr;
  std::atomic<bool> failed{false};
  std::mutex error_mutex;
  std::exception_ptr error;

  std::mutex callers;  // one loop at a time
  std::mutex mutex;
  std::condition_variable wake;
  std::atomic<int> sleepers{0};
  std::atomic<bool> stop{false};
  Clock::duration pause_time = kPauseTime;

  bool has_work() const {
    const uint64_t now = word.load();
    return (now & 0xFFFFFFFF) < now >> 32;
  }
};

ThreadPool::ThreadPool(int threads) : loop_(std::make_unique<Loop>()) {
  require(threads >= 0 && threads <= 1024, "threads: {} is not in [1, 1024]", threads);
  const int cores = available_cores();
  if (threads == 0) threads = std::min(cores, 1024);
  if (threads > cores) loop_->pause_time = Clock::duration::zero();  // a pausing thread would keep others off
  try {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
  } catch (const std::system_error& error) {
    const size_t started = workers_.size();
    stop();
    fail("the system refuses thread {} of {}: {}; ask for fewer threads", started + 2, threads, error.what());
  }
}

ThreadPool::~ThreadPool() {
  stop();
}

void ThreadPool::stop() {
  {
    std::lock_guard lock(loop_->mutex);
    loop_->stop = true;
  }
  loop_->wake.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run_chunks(int thread) {
  Loop& loop = *loop_;
  const RunningScope scope(this, thread);
  uint64_t word = loop.word.load();
  while ((word & 0xFFFFFFFF) < word >> 32) {
    if (!loop.word.compare_exchange_weak(word, word + 1)) continue;
    const int64_t begin = static_cast<int64_t>(word & 0xFFFFFFFF) * loop.grain;
    if (!loop.failed.load(std::memory_order_relaxed)) {
      try {
        (*loop.body)(begin, std::min(begin + loop.grain, loop.count), thread);
      } catch (...) {
        std::lock_guard lock(loop.error_mutex);
        if (!loop.error) loop.error = std::current_exception();
        loop.failed = true;
      }
    }
    loop.unfinished.fetch_sub(1, std::memory_order_acq_rel);
    word = loop.word.load();
  }
}

void ThreadPool::work(int thread) {
  pin_if_asked(thread);
  Loop& loop = *loop_;
  while (!loop.stop) {
    const auto ready = [&] { return loop.stop || loop.has_work(); };
    if (!spin_until(ready, loop.pause_time, kYieldTime)) {
      // `sleepers` is raised before `word` is read and the caller writes `word` before it reads `sleepers`
      // (all sequentially consistent), so one of the two sees the other.
      std::unique_lock lock(loop.mutex);
      ++loop.sleepers;
      loop.wake.wait(lock, ready);
      --loop.sleepers;
    }
    run_chunks(thread);
  }
}

void ThreadPool::parallel_for(int64_t count, int64_t grain,
                              const std::function<void(int64_t, int64_t, int)>& body) {
  if (count <= 0) return;
  grain = std::max({int64_t{1}, grain, count >> 31});  // the number of chunks fits the word's half
  if (running.pool == this) return body(0, count, running.thread);
  Loop& loop = *loop_;
  std::lock_guard one_at_a_time(loop.callers);
  if (workers_.empty() || count <= grain) {
    const RunningScope scope(this, 0);
    return body(0, count, 0);
  }
  const int64_t chunks = (count + grain - 1) / grain;
  loop.count = count;
  loop.grain = grain;
  loop.body = &body;
  loop.error = nullptr;
  loop.failed = false;
  loop.unfinished.store(chunks, std::memory_order_relaxed);
  loop.word.store(static_cast<uint64_t>(chunks) << 32);
  if (loop.sleepers.load() > 0) {
    { std::lock_guard lock(loop.mutex); }  // whoever counted itself is inside wait() by now
    loop.wake.notify_all();
  }
  run_chunks(0);
  const auto done = [&] { return loop.unfinished.load(std::memory_order_acquire) == 0; };
  while (!spin_until(done, loop.pause_time, kYieldTime)) std::this_thread::yield();
  if (loop.error) std::rethrow_exception(std::exchange(loop.error, nullptr));
}

}  // namespace quatrain
