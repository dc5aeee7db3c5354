// The linear layers of a model shape as one pass, against what the machine can stream and multiply:
//   nibble_matmul_bench [--shape smollm2|llama-1b|large] [--isa NAME] [--threads N] [--rounds N] [--group N]
//                       [--weight-group N] [--tokens M,M,...] [--residual P,P,...] [--quantile Q]
// Every product is timed beside a streaming read of as many bytes, the dot-product peak once a round. A pass
// is the sum over its layers of the median (or --quantile) of all timings of that shape, so that a busy
// machine disturbs few of them.
#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "bench_options.h"
#include "machine.h"
#include "ops/activation_quantize.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/nibble_memory.h"
#include "ops/nibble_matmul.h"

namespace quatrain::bench {
namespace {

struct Linear {
  int64_t rows, columns;
  bool all_residual = false;  // an 8-bit layer
};

struct Options : BenchOptions {
  int64_t group = 64;
  int64_t weight_group = 0;
  std::vector<int64_t> tokens = {1, 2, 4, 8, 16, 64, 512};
  std::vector<int64_t> residual = {0, 10, 100};  // per cent of the blocks
};

// q, k, v as one matrix, gate and up as one; the 8-bit head where the shape has it.
std::vector<Linear> linears_of(std::string_view shape) {
  std::vector<Linear> all;
  const auto layers = [&](int count, int64_t hidden, int64_t kv, int64_t inner) {
    for (int i = 0; i < count; ++i)
      for (const Linear& linear : {Linear{hidden + 2 * kv, hidden}, Linear{hidden, hidden},
                                   Linear{2 * inner, hidden}, Linear{hidden, inner}})
        all.push_back(linear);
  };
  if (shape == "smollm2") {
    layers(30, 576, 192, 1536);
    all.push_back({49152, 576, true});
  } else if (shape == "llama-1b") {
    layers(6, 2048, 512, 8192);  // 6 of 16 layers: 183 MB, far beyond any cache
  } else if (shape == "large") {
    layers(1, 8192, 1024, 28672);
  } else {
    fail("--shape: {} is not smollm2, llama-1b or large", shape);
  }
  return all;
}

NibblePlanes random_planes(const Linear& linear, const Options& options, int64_t residual,
                           SplitMix64& random) {
  NibblePlanes planes;
  planes.rows = linear.rows;
  planes.columns = linear.columns;
  planes.residual_block = 64;
  planes.weight_group = options.weight_group;
  planes.hi.resize(linear.rows * linear.columns / 2);
  for (size_t i = 0; i + 8 <= planes.hi.size(); i += 8) {
    const uint64_t word = random.next();
    std::memcpy(planes.hi.data() + i, &word, 8);
  }
  planes.scale.assign(linear.rows * planes.groups(), 0.015625f);
  const int64_t blocks = planes.block_rows() * planes.block_columns();
  for (int64_t b = 0; b < blocks; ++b)
    if (linear.all_residual || static_cast<int64_t>(random.below(100)) < residual)
      planes.residual_index.push_back(static_cast<int32_t>(b));
  planes.lo.assign(planes.residual_index.size() * kResidualRows * 32, 0x5A);
  return planes;
}

struct Shape {
  Linear linear;
  int count = 0;
  int64_t bytes = 0;
};

struct Timings {
  std::vector<double> product, read;
};

void run(const Options& options, int64_t residual, ThreadPool& pool) {
  SplitMix64 random(1);
  std::vector<std::unique_ptr<ops::NibbleMatrix>> matrices;
  std::vector<size_t> shape_of;  // of every matrix
  std::vector<Shape> shapes;
  int64_t bytes = 0, weights = 0;
  double pack_time = 0;
  for (const Linear& linear : linears_of(options.shape)) {
    const NibblePlanes planes = random_planes(linear, options, residual, random);
    pack_time += seconds([&] { matrices.push_back(ops::pack_nibble_matrix(planes, options.group, pool)); });
    size_t shape = 0;
    while (shape < shapes.size() &&
           (shapes[shape].linear.rows != linear.rows || shapes[shape].linear.columns != linear.columns))
      ++shape;
    if (shape == shapes.size()) shapes.push_back({linear, 0, matrices.back()->bytes()});
    ++shapes[shape].count;
    shape_of.push_back(shape);
    bytes += matrices.back()->bytes();
    weights += linear.rows * linear.columns;
  }
  const auto buffer = ops::allocate_packed(static_cast<size_t>(bytes));
  std::memset(buffer.get(), 1, static_cast<size_t>(bytes));

  const int64_t most = *std::max_element(options.tokens.begin(), options.tokens.end());
  std::vector<std::vector<ops::QuantizedActivations>> inputs(options.tokens.size());
  int64_t most_rows = 0;
  for (size_t i = 0; i < options.tokens.size(); ++i) {
    inputs[i] = std::vector<ops::QuantizedActivations>(shapes.size());
    for (size_t s = 0; s < shapes.size(); ++s) {
      const int64_t columns = shapes[s].linear.columns;
      std::vector<float> x(static_cast<size_t>(options.tokens[i] * columns));
      for (float& value : x) value = static_cast<float>(random.normal());
      ops::quantize_activations(x.data(), options.tokens[i], columns, columns, {8, options.group, false},
                                "bench", pool, inputs[i][s]);
      most_rows = std::max(most_rows, shapes[s].linear.rows);
    }
  }
  AlignedBuffer<float> output(static_cast<size_t>(most * most_rows));
  std::fill(output.data(), output.data() + output.size(), 0.0f);

  std::vector<std::vector<Timings>> timings(options.tokens.size(), std::vector<Timings>(shapes.size()));
  std::vector<double> peaks;
  for (int round = 0; round <= options.rounds; ++round) {
    const double peak = dot_peak(pool);
    if (round > 0) peaks.push_back(peak);  // round 0 warms pages and clocks
    for (size_t i = 0; i < options.tokens.size(); ++i) {
      int64_t at = 0;
      for (size_t l = 0; l < matrices.size(); ++l) {
        const size_t s = shape_of[l];
        const int64_t size = matrices[l]->bytes() / 64 * 64;
        const double read = seconds([&] { read_all(buffer.get() + at, size, pool); });
        at += size;
        const double product = seconds([&] {
          ops::nibble_matmul(*matrices[l], inputs[i][s], pool, output.data(), shapes[s].linear.rows);
        });
        if (round == 0) continue;
        timings[i][s].read.push_back(read);
        timings[i][s].product.push_back(product);
      }
    }
  }

  const double peak = quantile(peaks, 1 - options.quantile);
  fmt::print(
      "{}: residual {} %, {:.1f} MB a pass ({:.2f} bits a weight), packed in {:.2f} s, dot peak {:.0f} "
      "GOP/s\n",
      options.shape, residual, static_cast<double>(bytes) / 1e6,
      8.0 * static_cast<double>(bytes) / static_cast<double>(weights), pack_time, peak / 1e9);
  for (size_t i = 0; i < options.tokens.size(); ++i) {
    double product = 0, read = 0;
    std::string by_shape;
    for (size_t s = 0; s < shapes.size(); ++s) {
      const double one = quantile(timings[i][s].product, options.quantile);
      product += shapes[s].count * one;
      read += shapes[s].count * quantile(timings[i][s].read, options.quantile);
      const double operations = 2.0 * static_cast<double>(shapes[s].linear.rows * shapes[s].linear.columns);
      by_shape += fmt::format(" {}x{} {:.0f} us", shapes[s].linear.rows, shapes[s].linear.columns, one * 1e6);
      if (peak > 0)
        by_shape += fmt::format(" ({:.0f} %)",
                                100 * operations * static_cast<double>(options.tokens[i]) / one / peak);
    }
    const double operations = 2.0 * static_cast<double>(weights * options.tokens[i]);
    fmt::print(
        "  M {:4}: {:8.3f} ms, {:5.1f} GB/s = {:5.1f} % of read, {:5.0f} GOP/s = {:4.1f} % of peak; {}\n",
        options.tokens[i], product * 1e3, static_cast<double>(bytes) / product / 1e9, 100 * read / product,
        operations / product / 1e9, peak > 0 ? 100 * operations / product / peak : 0.0, by_shape);
  }
}

void run_all(const Options& options) {
  ThreadPool pool(options.threads);
  fmt::print("isa {}, {} threads, activation groups of {}, quantile {} of {} rounds\n",
             ops::name_of(ops::active_isa()), pool.threads(), options.group, options.quantile,
             options.rounds);
  for (const int64_t residual : options.residual) run(options, residual, pool);
}

}  // namespace
}  // namespace quatrain::bench

int main(int count, char** arguments) {
  using namespace quatrain::bench;
  Options options;
  CLI::App app("Linear layers of a model shape, against what the machine can stream and multiply");
  add_bench_options(app, options, {"smollm2", "llama-1b", "large"});
  app.add_option("--group", options.group, "of the activations; 0: whole tokens")->check(CLI::Range(0, 1024));
  app.add_option("--weight-group", options.weight_group, "0: whole rows")->check(CLI::Range(0, 1024));
  app.add_option("--tokens", options.tokens)->delimiter(',')->check(CLI::Range(1, 1 << 20));
  app.add_option("--residual", options.residual, "per cent of the blocks")
      ->delimiter(',')
      ->check(CLI::Range(0, 100));
  return run_bench(app, count, arguments, [&] { run_all(options); });
}
