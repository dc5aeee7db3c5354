// Counts and times for Prometheus.
#pragma once

#include <memory>
#include <string>

#include "engine/scheduler.h"

namespace quatrain {

/// Safe to use from several threads.
class Metrics {
 public:
  Metrics();
  ~Metrics();

  void request(const std::string& path, int status);
  void queue_seconds(double seconds);
  void first_token_seconds(double seconds);
  void next_token_seconds(double seconds);
  /// A generation ended, `seconds` after it was submitted.
  void finished(Finish finish, double seconds);

  /// Everything, and the scheduler's counts, in Prometheus' text format.
  std::string text(const SchedulerStats& stats) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quatrain
