#include "serve/worker_pool.h"

#include <utility>

namespace quatrain {
namespace {

thread_local bool task_is_refused = false;

}  // namespace

WorkerPool::WorkerPool(size_t threads, size_t backlog) : size_(threads), backlog_(backlog) {
  for (size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
}

void WorkerPool::enqueue(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    if (tasks_.size() < backlog_) tasks_.push_back(std::exchange(task, nullptr));
  }
  if (!task) {
    changed_.notify_one();
    return;
  }
  task_is_refused = true;
  task();
  task_is_refused = false;
}

void WorkerPool::shutdown() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

bool WorkerPool::has_waiting() const {
  const std::lock_guard lock(mutex_);
  return tasks_.size() > size_ - busy_;
}

bool WorkerPool::refused() {
  return task_is_refused;
}

void WorkerPool::work() {
  for (;;) {
    std::function<void()> task;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return ended_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
      ++busy_;
    }
    task();
    const std::lock_guard lock(mutex_);
    --busy_;
  }
}

}  // namespace quatrain
