// Threads that serve connections, one connection at a time each.
#pragma once

#include <httplib.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace quatrain {

class WorkerPool : public httplib::TaskQueue {
 public:
  /// `backlog`: connections that may wait for a thread. A task beyond runs at once on the calling thread, and
  /// refused() is true in it: it should say so and end.
  WorkerPool(size_t threads, size_t backlog);
  ~WorkerPool() override { shutdown(); }

  void enqueue(std::function<void()> task) override;
  /// Runs what waits, then ends the threads.
  void shutdown() override;

  /// More tasks wait than threads are free. (A free thread may be slow to wake.)
  bool has_waiting() const;
  static bool refused();

 private:
  void work();

  const size_t size_, backlog_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  size_t busy_ = 0;  // threads
  bool ended_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace quatrain
