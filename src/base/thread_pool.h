// Worker threads for loops over independent items.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace quatrain {

/// Cores this process may use: affinity mask and cgroup limit respected, at least 1.
int available_cores();

/// A fixed set of threads, the caller being one of them. One loop runs at a time; loops do not nest.
/// Workers spin between loops for a short while (a decode step has hundreds of loops a few microseconds
/// apart), then sleep.
class ThreadPool {
 public:
  /// `threads` in [1, 1024]; 0 takes available_cores().
  explicit ThreadPool(int threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  /// Calls body(begin, end, thread) for chunks that cover [0, count) once; chunks of `grain` items are taken
  /// in turn, so a preempted thread does not hold up the rest. Returns when all are done; the first exception
  /// is rethrown.
  void parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t, int)>& body);

 private:
  struct Loop;
  void work(int thread);
  void run_chunks(int thread);

  std::unique_ptr<Loop> loop_;
  std::vector<std::thread> workers_;
};

}  // namespace quatrain
