// Worker threads for loops over independent items.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace quatrain {

/// Physical cores this process may use: affinity mask and cgroup limit respected, at least 1. Two threads of
/// one core share what integer products need.
int available_cores();

/// A fixed set of threads, the caller being one of them. Loops called from several threads run one after the
/// other; a loop inside a loop runs on the thread that calls it. Workers spin between loops for a short while
/// (a decode step has hundreds of loops a few microseconds apart), then sleep.
class ThreadPool {
 public:
  /// `threads` in [1, 1024]; 0 takes available_cores().
  explicit ThreadPool(int threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  /// Calls body(begin, end, thread) for chunks that cover [0, count) once; chunks of `grain` items are taken
  /// in turn, so a preempted thread does not hold up the rest. `thread` is in [0, threads()), and no two
  /// calls of it overlap. Returns when all are done; after an exception the chunks not yet begun are skipped
  /// and the exception is rethrown (the first in time, where there are several).
  void parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t, int)>& body);

 private:
  struct Loop;
  void stop();
  void work(int thread);
  void run_chunks(int thread);

  std::unique_ptr<Loop> loop_;
  std::vector<std::thread> workers_;
};

}  // namespace quatrain
