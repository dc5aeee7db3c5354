#include "base/affinity.h"

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <fstream>
#include <set>
#include <string>

#include "base/log.h"

namespace quatrain {
namespace {

std::atomic<bool> pinned{false};

// What all processors of one core have in common: the list of its processors.
std::string core_of(int processor, const fs::path& topology) {
  std::string siblings;
  std::ifstream(topology / ("cpu" + std::to_string(processor)) / "topology/thread_siblings_list") >> siblings;
  return siblings.empty() ? "alone " + std::to_string(processor) : siblings;
}

// One processor of every core, then the others.
std::vector<int> cores_first(const std::vector<int>& processors) {
  std::vector<int> order, others;
  std::set<std::string> seen;
  for (const int processor : processors)
    (seen.insert(core_of(processor, "/sys/devices/system/cpu")).second ? order : others).push_back(processor);
  order.insert(order.end(), others.begin(), others.end());
  return order;
}

}  // namespace

std::vector<int> allowed_processors() {
  std::vector<int> processors;
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof mask, &mask) == 0)
    for (int processor = 0; processor < CPU_SETSIZE; ++processor)
      if (CPU_ISSET(processor, &mask)) processors.push_back(processor);
  return processors;
}

int count_physical_cores(std::span<const int> processors, const fs::path& topology) {
  std::set<std::string> cores;
  for (const int processor : processors) cores.insert(core_of(processor, topology));
  return static_cast<int>(cores.size());
}

void pin_workers() {
  pinned = true;
}

void pin_if_asked(int worker) {
  if (!pinned) return;
  static const std::vector<int> order = cores_first(allowed_processors());
  if (order.empty()) return;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(order[static_cast<size_t>(worker) % order.size()], &one);
  if (pthread_setaffinity_np(pthread_self(), sizeof one, &one) != 0)
    log_warn("--pin: the system does not let thread {} stay on one processor", worker);
}

}  // namespace quatrain
