#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <fstream>
#include <mutex>
#include <string>

#include "base/error.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace quatrain {
namespace {

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

constexpr int kSpins = 20000;  // about 0.3 ms: longer than the gaps inside a decode step

}  // namespace

int available_cores() {
  int cores = static_cast<int>(std::thread::hardware_concurrency());
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof mask, &mask) == 0) cores = CPU_COUNT(&mask);
  std::ifstream limit("/sys/fs/cgroup/cpu.max");  // cgroup v2: "quota period" or "max period"
  std::string quota;
  double period = 0;
  if (limit >> quota >> period && quota != "max" && period > 0)
    cores = std::min(cores, std::max(1, static_cast<int>(std::stod(quota) / period + 0.5)));
  return std::max(1, cores);
}

struct ThreadPool::Loop {
  std::mutex mutex;
  std::condition_variable wake;
  std::atomic<uint64_t> generation{0};
  std::atomic<int> running{0};
  std::atomic<int64_t> next{0};
  std::atomic<bool> stop{false};
  std::atomic<int> sleepers{0};
  int64_t count = 0;
  int64_t grain = 1;
  const std::function<void(int64_t, int64_t, int)>* body = nullptr;
  std::mutex error_mutex;
  std::exception_ptr error;
};

ThreadPool::ThreadPool(int threads) : loop_(std::make_unique<Loop>()) {
  require(threads >= 0 && threads <= 1024, "threads: {} is not in [1, 1024]", threads);
  if (threads == 0) threads = available_cores();
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(loop_->mutex);
    loop_->stop = true;
  }
  loop_->wake.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run_chunks(int thread) {
  Loop& loop = *loop_;
  for (;;) {
    const int64_t begin = loop.next.fetch_add(loop.grain, std::memory_order_relaxed);
    if (begin >= loop.count) return;
    try {
      (*loop.body)(begin, std::min(begin + loop.grain, loop.count), thread);
    } catch (...) {
      std::lock_guard lock(loop.error_mutex);
      if (!loop.error) loop.error = std::current_exception();
    }
  }
}

void ThreadPool::work(int thread) {
  Loop& loop = *loop_;
  uint64_t seen = 0;
  for (;;) {
    for (int spin = 0; spin < kSpins && loop.generation.load(std::memory_order_acquire) == seen && !loop.stop;
         ++spin)
      relax();
    if (loop.generation.load(std::memory_order_acquire) == seen) {
      std::unique_lock lock(loop.mutex);
      ++loop.sleepers;
      loop.wake.wait(lock, [&] { return loop.stop || loop.generation.load() != seen; });
      --loop.sleepers;
    }
    if (loop.stop) return;
    seen = loop.generation.load(std::memory_order_acquire);
    run_chunks(thread);
    loop.running.fetch_sub(1, std::memory_order_acq_rel);
  }
}

void ThreadPool::parallel_for(int64_t count, int64_t grain,
                              const std::function<void(int64_t, int64_t, int)>& body) {
  if (count <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  if (workers_.empty() || count <= grain) {
    body(0, count, 0);
    return;
  }
  Loop& loop = *loop_;
  loop.count = count;
  loop.grain = grain;
  loop.body = &body;
  loop.error = nullptr;
  loop.next.store(0, std::memory_order_relaxed);
  loop.running.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  {
    // seq_cst with `sleepers`, under the mutex: a worker that is about to sleep sees the new generation or is
    // woken
    std::lock_guard lock(loop.mutex);
    loop.generation.fetch_add(1);
  }
  if (loop.sleepers.load() > 0) loop.wake.notify_all();
  run_chunks(0);
  for (int spin = 0; loop.running.load(std::memory_order_acquire) > 0; ++spin) {
    if (spin < kSpins) {
      relax();
    } else {
      std::this_thread::yield();
    }
  }
  if (loop.error) std::rethrow_exception(std::exchange(loop.error, nullptr));
}

}  // namespace quatrain
