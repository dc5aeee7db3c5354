// Operators between the products, each alone, against what the machine can stream and multiply:
//   operators_bench [--shape smollm2|llama-1b] [--isa NAME] [--threads N] [--rounds N] [--megabytes N]
//                   [--quantile Q]
// An operator takes the next data at every call, over --megabytes in all. A megabyte or so of calls is timed
// beside a streaming read of as many bytes and, for attention, the dot-product peak (three products a code
// with AVX512-VNNI); "warm" are the same calls on data that the call before has used, as rows are when an
// engine comes to them. Figures are medians (or --quantile) of all timings: on a busy machine few are
// disturbed. Bytes are those that must move: a result is written once, weights and factors of a row stay in
// the cache.
#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "base/error.h"
#include "bench_options.h"
#include "machine.h"
#include "operators.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/nibble_memory.h"

namespace quatrain::bench {
namespace {

struct Options : BenchOptions {
  int64_t megabytes = 128;
};

// Seconds of `calls` calls on data number data_of(i, thread).
template <typename DataOf>
double time_calls(const Operator& op, int64_t calls, ThreadPool& pool, const DataOf& data_of) {
  return seconds([&] {
    if (op.threaded) {
      for (int64_t i = 0; i < calls; ++i) op.call(data_of(i, 0));
      return;
    }
    const int64_t grain = std::max<int64_t>(1, calls / (pool.threads() * 8));
    pool.parallel_for(calls, grain, [&](int64_t begin, int64_t end, int thread) {
      for (int64_t i = begin; i < end; ++i) op.call(data_of(i, thread));
    });
  });
}

void run(const Operator& op, const Options& options, ThreadPool& pool, const uint8_t* stream) {
  const int64_t limit = options.megabytes * 1'000'000;
  const int64_t all = std::min(op.most, limit / op.bytes);
  const int64_t calls = std::max<int64_t>(1, 1'000'000 / op.bytes) * (op.threaded ? 1 : pool.threads());
  require(all >= calls, "{}: --megabytes {} is too little", op.name, options.megabytes);
  const int64_t read_bytes = calls * op.bytes / 256 * 256;
  std::vector<double> times, warm_times, reads, peaks;
  for (int round = 0; round <= options.rounds; ++round)
    for (int64_t first = 0; first + calls <= all; first += calls) {
      const uint8_t* from = stream + first / calls * read_bytes;
      const double read = seconds([&] { read_all(from, read_bytes, pool); });
      const double time = time_calls(op, calls, pool, [&](int64_t i, int) { return first + i; });
      const double warm = time_calls(op, calls, pool, [](int64_t, int thread) { return int64_t{thread}; });
      if (round == 0) continue;  // warms pages and clocks
      reads.push_back(read / static_cast<double>(read_bytes));
      times.push_back(time / static_cast<double>(calls));
      warm_times.push_back(warm / static_cast<double>(calls));
      if (op.products > 0) peaks.push_back(dot_peak(pool));
    }
  const auto bytes = static_cast<double>(op.bytes);
  const double time = quantile(times, options.quantile), warm = quantile(warm_times, options.quantile);
  const double read = quantile(reads, options.quantile) * bytes;
  const auto each = [&](double seconds) {
    return op.values > 0 ? fmt::format(" {:7.3f} ns a value,", seconds * 1e9 / static_cast<double>(op.values))
                         : std::string(20, ' ');
  };
  fmt::print("  {:27} {:8.2f} us,{} {:5.2f} GB/s = {:5.1f} % of read; warm {:8.2f} us,{} {:6.1f} %", op.name,
             time * 1e6, each(time), bytes / time / 1e9, 100 * read / time, warm * 1e6, each(warm),
             100 * read / warm);
  if (op.products > 0) {
    const double best = 2.0 * static_cast<double>(op.products) / quantile(peaks, 1 - options.quantile);
    fmt::print("; {:4.1f} % of dot peak, warm {:4.1f} %", 100 * best / time, 100 * best / warm);
  }
  fmt::print("\n");
}

void run_all(const Options& options) {
  ThreadPool pool(options.threads);
  OperatorData data(options.shape, options.megabytes, pool);
  const auto bytes = static_cast<size_t>(options.megabytes * 1'000'000);
  const auto stream = ops::allocate_packed(bytes);
  std::memset(stream.get(), 1, bytes);
  fmt::print("{}: isa {}, {} threads, quantile {} of {} rounds over {} MB\n", options.shape,
             ops::name_of(ops::active_isa()), pool.threads(), options.quantile, options.rounds,
             options.megabytes);
  for (const Operator& op : data.operators()) run(op, options, pool, stream.get());
}

}  // namespace
}  // namespace quatrain::bench

int main(int count, char** arguments) {
  using namespace quatrain::bench;
  Options options;
  CLI::App app(
      "Operators between the products, each alone, against what the machine can stream and multiply");
  add_bench_options(app, options, {"smollm2", "llama-1b"});
  app.add_option("--megabytes", options.megabytes, "data that the calls go over")
      ->check(CLI::Range(1, 65536));
  return run_bench(app, count, arguments, [&] { run_all(options); });
}
