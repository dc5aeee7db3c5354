#include "serve/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <vector>

namespace quatrain {
namespace {

using prometheus::MetricFamily;
using prometheus::MetricType;

// Each three times the one before or less: from a decode step to a long reply.
const prometheus::Histogram::BucketBoundaries kBuckets = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                                          0.5,   1,      2.5,   5,    10,    25,   60,  120};

MetricFamily family(MetricType type, const std::string& name, const std::string& help) {
  MetricFamily family;
  family.name = name;
  family.help = help;
  family.type = type;
  return family;
}

void add(MetricFamily& family, double value, const std::string& label = {}, const std::string& text = {}) {
  prometheus::ClientMetric metric;
  if (!label.empty()) metric.label.push_back({label, text});
  metric.gauge.value = value;
  metric.counter.value = value;
  family.metric.push_back(std::move(metric));
}

double resident_bytes() {
  int64_t size = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  return static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

std::vector<MetricFamily> scheduler_families(const SchedulerStats& stats) {
  std::vector<MetricFamily> families;
  const auto one = [&](MetricType type, const char* name, const char* help, int64_t value) {
    families.push_back(family(type, name, help));
    add(families.back(), static_cast<double>(value));
  };
  one(MetricType::Gauge, "quatrain_requests_waiting", "Generations in the queue", stats.waiting);
  one(MetricType::Gauge, "quatrain_requests_running", "Generations in the batch", stats.running);
  families.push_back(family(MetricType::Gauge, "quatrain_kv_pages", "Pages of the KV cache"));
  add(families.back(), static_cast<double>(stats.pages_in_use - stats.pages_cached), "state", "running");
  add(families.back(), static_cast<double>(stats.pages_cached), "state", "cached");
  one(MetricType::Gauge, "quatrain_kv_pages_limit", "Pages that may be in use", stats.pages_limit);
  one(MetricType::Counter, "quatrain_steps_total", "Forward passes", stats.steps);
  one(MetricType::Counter, "quatrain_step_tokens_total", "Tokens of all forward passes", stats.step_tokens);
  one(MetricType::Counter, "quatrain_prompt_tokens_total", "Tokens of prompts", stats.prompt_tokens);
  one(MetricType::Counter, "quatrain_reused_prompt_tokens_total", "Of these, found in the KV cache",
      stats.reused_tokens);
  one(MetricType::Counter, "quatrain_generated_tokens_total", "Tokens generated", stats.generated_tokens);
  one(MetricType::Counter, "quatrain_preemptions_total", "Sequences that gave up their pages and ran again",
      stats.preemptions);
  families.push_back(family(MetricType::Gauge, "process_resident_memory_bytes", "Memory in use"));
  add(families.back(), resident_bytes());
  return families;
}

const char* name_of(Finish finish) {
  switch (finish) {
    case Finish::Stop:
      return "stop";
    case Finish::Length:
      return "length";
    case Finish::Cancelled:
      return "cancelled";
    case Finish::Deadline:
      return "deadline";
    case Finish::Failed:
      return "failed";
  }
  return "";
}

prometheus::Histogram& histogram(prometheus::Registry& registry, const char* name, const char* help) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add({}, kBuckets);
}

}  // namespace

struct Metrics::Impl {
  prometheus::Registry registry;
  prometheus::Family<prometheus::Counter>& requests = prometheus::BuildCounter()
                                                          .Name("quatrain_http_requests_total")
                                                          .Help("Responses by path and status")
                                                          .Register(registry);
  prometheus::Family<prometheus::Counter>& finished = prometheus::BuildCounter()
                                                          .Name("quatrain_generations_total")
                                                          .Help("Generations by how they ended")
                                                          .Register(registry);
  prometheus::Histogram& queue =
      histogram(registry, "quatrain_queue_seconds", "From a request's arrival to its place in the batch");
  prometheus::Histogram& first = histogram(registry, "quatrain_time_to_first_token_seconds",
                                           "From a request's arrival to its first token");
  prometheus::Histogram& next =
      histogram(registry, "quatrain_inter_token_seconds", "From one token of a reply to the next");
  prometheus::Histogram& whole =
      histogram(registry, "quatrain_generation_seconds", "From a request's arrival to its end");
};

Metrics::Metrics() : impl_(std::make_unique<Impl>()) {}
Metrics::~Metrics() = default;

void Metrics::request(const std::string& path, int status) {
  impl_->requests.Add({{"path", path}, {"status", std::to_string(status)}}).Increment();
}

void Metrics::queue_seconds(double seconds) {
  impl_->queue.Observe(seconds);
}

void Metrics::first_token_seconds(double seconds) {
  impl_->first.Observe(seconds);
}

void Metrics::next_token_seconds(double seconds) {
  impl_->next.Observe(seconds);
}

void Metrics::finished(Finish finish, double seconds) {
  impl_->finished.Add({{"reason", name_of(finish)}}).Increment();
  impl_->whole.Observe(seconds);
}

std::string Metrics::text(const SchedulerStats& stats) const {
  std::vector<MetricFamily> families = impl_->registry.Collect();
  std::ranges::move(scheduler_families(stats), std::back_inserter(families));
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace quatrain
