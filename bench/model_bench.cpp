#include "model_bench.h"

#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>

#include "base/error.h"
#include "base/rng.h"
#include "engine/prefix_cache.h"
#include "machine.h"
#include "ops/argmax.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/nibble_memory.h"

namespace quatrain::bench {
namespace {

constexpr int64_t kGoldenTokens = 8;  // of the prompt, and as many generated
// A wrong kernel is wrong by the size of its result. Right ones differ by rounding, and by the few 4-bit
// codes that rounding moves.
constexpr double kMostDeviation = 0.1;
constexpr int64_t kMostReadBytes = int64_t{1} << 30;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name")) return line.substr(std::min(line.size(), line.find(':') + 2));
  return "unknown";
}

// sysconf() adds up all sockets' caches on some machines.
int64_t last_level_cache() {
  std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index3/size");
  int64_t kilobytes = 0;
  return file >> kilobytes ? kilobytes << 10 : 0;
}

int64_t peak_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} << 10;
}

std::vector<int32_t> random_tokens(int64_t count, int64_t vocabulary, uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) token = static_cast<int32_t>(random.below(static_cast<uint64_t>(vocabulary)));
  return tokens;
}

int32_t greedy(std::span<const float> logits) {
  return static_cast<int32_t>(ops::argmax(logits));
}

GoldenCheck check_golden(Engine& engine) {
  GoldenCheck golden;
  KernelCheck* check = engine.kernel_check();
  if (check == nullptr) return golden;
  const std::vector<int32_t> prompt = random_tokens(kGoldenTokens, engine.config().vocabulary, 5);
  const int64_t sequence = engine.new_sequence();
  int32_t next = 0;
  BatchItem item{sequence, prompt, BatchItem::Logits::Last};
  check->on = true;
  for (; golden.tokens < kGoldenTokens; ++golden.tokens) {
    engine.forward({&item, 1},
                   [&](int64_t, int64_t, std::span<const float> logits) { next = greedy(logits); });
    item.tokens = {&next, 1};
  }
  check->on = false;
  engine.free_sequence(sequence);
  golden.deviation = check->deviation;
  golden.where = check->where;
  require(golden.deviation <= kMostDeviation,
          "golden generation: {} by the {} kernels differs from the generic ones' by {:.3g} of its size: a "
          "kernel is wrong, so its speed means nothing",
          golden.where, ops::name_of(ops::active_isa()), golden.deviation);
  return golden;
}

/// One kind of work and what its rounds gave.
class Work {
 public:
  Work(Engine& engine, std::string_view name, int64_t batch, int64_t depth, int64_t tokens)
      : engine_(engine), depth_(depth), tokens_(tokens), decode_(name == "decode") {
    result_.work = name;
    result_.batch = batch;
    result_.depth = depth;
    result_.tokens = tokens * batch;
    const EngineCosts costs = engine.costs();
    // A decoded token sees depth + half of what is decoded on average; a prompt reads the weights once a
    // pass.
    const int64_t cache = costs.kv_bytes * (depth + tokens / 2);
    result_.bytes_per_token = decode_ ? engine.weight_bytes_per_token() / batch + cache
                                      : engine.weight_bytes_per_token() / tokens + cache;
    operations_ = 2.0 * static_cast<double>(costs.multiplies * result_.tokens +
                                            costs.head_multiplies * (decode_ ? result_.tokens : batch));
    for (int64_t i = 0; i < batch; ++i) sequences_.push_back(engine.new_sequence());
  }

  /// Fills the sequences up to the depth. Kept from round to round.
  void prepare() {
    for (size_t i = 0; i < sequences_.size(); ++i) {
      const std::vector<int32_t> prompt = random_tokens(depth_, engine_.config().vocabulary, i);
      const auto rest = std::span(prompt).subspan(static_cast<size_t>(engine_.length(sequences_[i])));
      if (rest.empty()) continue;
      const BatchItem item{sequences_[i], rest, BatchItem::Logits::None};
      engine_.forward({&item, 1}, [](int64_t, int64_t, std::span<const float>) {});
    }
  }

  /// Runs once; `read` and `peak` are bytes and operations a second of this round.
  void round(double read, double peak, bool keep) {
    if (OperatorClock* clock = engine_.clock()) clock->clear();
    const double time = seconds([&] { decode_ ? decode() : prefill(); });
    rewind();
    if (!keep) return;
    times_.push_back(time);
    if (read > 0)
      bandwidth_shares_.push_back(static_cast<double>(result_.bytes_per_token * result_.tokens) / time /
                                  read);
    if (peak > 0) dot_shares_.push_back(operations_ / time / peak);
    if (const OperatorClock* clock = engine_.clock())
      for (size_t i = 0; i < OperatorClock::kCount; ++i)
        operator_seconds_[i] += clock->seconds(static_cast<Operator>(i));
  }

  WorkResult result() {
    const auto rate = [&](double time) { return static_cast<double>(result_.tokens) / time; };
    result_.tok_s = rate(median(times_));
    result_.slowest = rate(*std::max_element(times_.begin(), times_.end()));
    result_.fastest = rate(*std::min_element(times_.begin(), times_.end()));
    result_.bandwidth_share = median(bandwidth_shares_);
    result_.dot_share = median(dot_shares_);
    double total = 0;
    for (const double time : times_) total += time;
    double rest = 1;
    for (size_t i = 0; i < OperatorClock::kCount; ++i) {
      const double share = operator_seconds_[i] / total;
      rest -= share;
      if (share > 0) result_.operators.emplace_back(name_of(static_cast<Operator>(i)), share);
    }
    if (engine_.clock() != nullptr) result_.operators.emplace_back("rest", std::max(0.0, rest));
    for (const int64_t sequence : sequences_) engine_.free_sequence(sequence);
    return result_;
  }

 private:
  // Back to the depth; what an engine could not keep runs again.
  void rewind() {
    for (const int64_t sequence : sequences_) engine_.truncate(sequence, engine_.reusable(sequence, depth_));
    prepare();
  }

  void prefill() {
    const std::vector<int32_t> prompt = random_tokens(tokens_, engine_.config().vocabulary, 17);
    const BatchItem item{sequences_.front(), prompt, BatchItem::Logits::Last};
    engine_.forward({&item, 1}, [](int64_t, int64_t, std::span<const float>) {});
  }

  // Greedy: every token is the argmax of the logits before it.
  void decode() {
    std::vector<int32_t> next = random_tokens(result_.batch, engine_.config().vocabulary, 23);
    std::vector<BatchItem> items;
    for (int64_t step = 0; step < tokens_; ++step) {
      items.clear();
      for (size_t i = 0; i < sequences_.size(); ++i)
        items.push_back({sequences_[i], {&next[i], 1}, BatchItem::Logits::Last});
      engine_.forward(items, [&](int64_t item, int64_t, std::span<const float> logits) {
        next[static_cast<size_t>(item)] = greedy(logits);
      });
    }
  }

  Engine& engine_;
  int64_t depth_, tokens_;
  bool decode_;
  double operations_ = 0;
  std::vector<int64_t> sequences_;
  std::vector<double> times_, bandwidth_shares_, dot_shares_;
  std::array<double, OperatorClock::kCount> operator_seconds_{};
  WorkResult result_;
};

std::vector<Work> plan(Engine& engine, const ModelBenchOptions& options) {
  const auto check = [&](std::string_view flag, int64_t tokens) {
    require(tokens <= engine.context(), "{}: {} tokens exceed the context of {} that {} was trained for",
            flag, tokens, engine.context(), options.model.string());
  };
  std::vector<Work> works;
  int64_t pages = 0;  // of the cache, for all sequences that are alive together
  const auto reserve = [&](int64_t sequences, int64_t tokens) {
    pages += sequences * pages_of(tokens);
    require(pages <= engine.pages_in_all(),
            "--batch, --depth: the sequences need {} pages of KV cache, memory has room for {}", pages,
            engine.pages_in_all());
  };
  for (const int64_t tokens : options.prefill) {
    check("--prefill", tokens);
    reserve(1, tokens);
    works.emplace_back(engine, "prefill", 1, 0, tokens);
  }
  if (options.decode > 0)
    for (const int64_t depth : options.depth)
      for (const int64_t batch : options.batch) {
        check("--depth", depth);  // apart first: the sum of two such numbers may not exist
        check("--decode", options.decode);
        check("--depth and --decode", depth + options.decode);
        reserve(batch, depth + options.decode);
        works.emplace_back(engine, "decode", batch, depth, options.decode);
      }
  return works;
}

}  // namespace

ModelBench bench_model(const ModelBenchOptions& options) {
  ModelBench bench;
  std::unique_ptr<Engine> engine;
  bench.load_seconds = seconds([&] {
    engine = Engine::load(options.model, options.engine);
    const int64_t sequence = engine->new_sequence();
    const int32_t token = 0;
    const BatchItem item{sequence, {&token, 1}, BatchItem::Logits::Last};
    engine->forward({&item, 1}, [](int64_t, int64_t, std::span<const float>) {});
    engine->free_sequence(sequence);
  });
  std::vector<Work> works = plan(*engine, options);
  bench.isa = ops::name_of(ops::active_isa());
  bench.processor = processor_name();
  bench.threads = engine->threads();
  bench.weight_bytes = engine->weight_bytes_per_token();
  bench.last_level_cache = last_level_cache();
  bench.peak_memory = peak_memory();
  bench.on_cpu = options.engine.device == "cpu";
  bench.golden = check_golden(*engine);

  ThreadPool pool(engine->threads());
  const int64_t size = bench.on_cpu ? std::min(bench.weight_bytes, kMostReadBytes) / 64 * 64 : 64;
  const auto buffer = ops::allocate_packed(static_cast<size_t>(size));
  std::memset(buffer.get(), 1, static_cast<size_t>(size));
  const auto read_rate = [&] {
    return static_cast<double>(size) / seconds([&] { read_all(buffer.get(), size, pool); });
  };
  for (Work& work : works) work.prepare();
  std::vector<double> reads, peaks;
  for (int round = 0; round <= options.rounds; ++round)  // round 0 warms caches, pages and clocks
    for (Work& work : works) {
      const double read = bench.on_cpu ? std::max(read_rate(), read_rate()) : 0,
                   peak = bench.on_cpu ? dot_peak(pool) : 0;
      work.round(read, peak, round > 0);
      if (round == 0) continue;
      reads.push_back(read);
      peaks.push_back(peak);
    }
  bench.read_bandwidth = median(reads);
  bench.dot_peak = median(peaks);
  for (Work& work : works) bench.results.push_back(work.result());
  return bench;
}

}  // namespace quatrain::bench
