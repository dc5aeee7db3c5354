// The linear layers of a model shape as one pass, against what the machine can stream and multiply:
//   nibble_matmul_bench [--shape smollm2|llama-1b|large] [--isa NAME] [--threads N] [--rounds N] [--group N]
//                       [--tokens M,M,...] [--residual P,P,...] [--weight-group N]
// Every round measures the streaming read (of as many bytes as a pass reads) and the dot-product peak beside
// the passes; shares are medians of a round's own ratio, since the speed of a shared machine drifts.
#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
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

struct Options {
  std::string shape = "smollm2";
  int threads = 0;
  int rounds = 7;
  int64_t group = 64;
  int64_t weight_group = 0;
  std::vector<int64_t> tokens = {1, 2, 4, 8, 16, 64, 512};
  std::vector<int64_t> residual = {0, 10, 100};  // per cent of the blocks
};

std::vector<int64_t> list_of(const std::string& text) {
  std::vector<int64_t> values;
  for (size_t at = 0; at < text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    values.push_back(std::stoll(text.substr(at, comma - at)));
    at = comma + 1;
  }
  return values;
}

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

struct Row {
  std::vector<double> time, read_share, peak_share;
};

void run(const Options& options, int64_t residual, ThreadPool& pool) {
  SplitMix64 random(1);
  const std::vector<Linear> linears = linears_of(options.shape);
  std::vector<std::unique_ptr<ops::NibbleMatrix>> matrices;
  int64_t bytes = 0, weights = 0;
  double pack_time = 0;
  for (const Linear& linear : linears) {
    const NibblePlanes planes = random_planes(linear, options, residual, random);
    pack_time += seconds([&] { matrices.push_back(ops::pack_nibble_matrix(planes, options.group, pool)); });
    bytes += matrices.back()->bytes();
    weights += linear.rows * linear.columns;
  }
  const auto buffer = ops::allocate_packed(static_cast<size_t>(bytes));
  std::memset(buffer.get(), 1, static_cast<size_t>(bytes));

  const int64_t most = *std::max_element(options.tokens.begin(), options.tokens.end());
  std::vector<Row> rows(options.tokens.size());
  std::vector<double> read_speed, peak_speed;
  AlignedBuffer<float> input, output;
  for (int round = 0; round <= options.rounds; ++round) {
    const double read = seconds([&] { read_all(buffer.get(), bytes, pool); });
    const double peak = dot_peak(pool);
    for (size_t i = 0; i < rows.size(); ++i) {
      const int64_t tokens = options.tokens[i];
      double time = 0;
      for (size_t l = 0; l < linears.size(); ++l) {
        // activations lie in the cache as they do behind the layer before
        input.resize(static_cast<size_t>(most * linears[l].columns));
        if (round == 0)
          for (size_t k = 0; k < input.size(); ++k) input[k] = static_cast<float>(k % 17) - 8.0f;
        ops::QuantizedActivations x;
        ops::quantize_activations(input.data(), tokens, linears[l].columns, linears[l].columns,
                                  {8, options.group, false}, "bench", pool, x);
        output.resize(static_cast<size_t>(most * linears[l].rows));
        time += seconds([&] { ops::nibble_matmul(*matrices[l], x, pool, output.data(), linears[l].rows); });
      }
      if (round == 0) continue;  // warms pages and clocks
      rows[i].time.push_back(time);
      rows[i].read_share.push_back(read / time);
      if (peak > 0) rows[i].peak_share.push_back(2.0 * static_cast<double>(weights * tokens) / time / peak);
    }
    if (round == 0) continue;
    read_speed.push_back(static_cast<double>(bytes) / read);
    peak_speed.push_back(peak);
  }

  fmt::print(
      "{}: residual {} %, {:.1f} MB a pass ({:.2f} bits a weight), packed in {:.2f} s; read {:.1f} GB/s, dot "
      "peak {:.0f} GOP/s\n",
      options.shape, residual, static_cast<double>(bytes) / 1e6,
      8.0 * static_cast<double>(bytes) / static_cast<double>(weights), pack_time, median(read_speed) / 1e9,
      median(peak_speed) / 1e9);
  for (size_t i = 0; i < rows.size(); ++i) {
    const double time = median(rows[i].time);
    fmt::print("  M {:4}: {:9.3f} ms, {:6.1f} GB/s, {:5.1f} % of read, {:6.0f} GOP/s, {:5.1f} % of peak\n",
               options.tokens[i], time * 1e3, static_cast<double>(bytes) / time / 1e9,
               100 * median(rows[i].read_share),
               2e-9 * static_cast<double>(weights * options.tokens[i]) / time,
               rows[i].peak_share.empty() ? 0.0 : 100 * median(rows[i].peak_share));
  }
}

void main_of(int count, char** arguments) {
  Options options;
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string_view name = arguments[i];
    const std::string value = arguments[i + 1];
    if (name == "--shape")
      options.shape = value;
    else if (name == "--isa")
      setenv("QUATRAIN_ISA", value.c_str(), 1);
    else if (name == "--threads")
      options.threads = std::stoi(value);
    else if (name == "--rounds")
      options.rounds = std::stoi(value);
    else if (name == "--group")
      options.group = std::stoll(value);
    else if (name == "--weight-group")
      options.weight_group = std::stoll(value);
    else if (name == "--tokens")
      options.tokens = list_of(value);
    else if (name == "--residual")
      options.residual = list_of(value);
    else
      fail("{}: unknown option", name);
  }
  ThreadPool pool(options.threads);
  fmt::print("isa {}, {} threads, activation groups of {}, medians of {} rounds\n",
             ops::name_of(ops::active_isa()), pool.threads(), options.group, options.rounds);
  for (const int64_t residual : options.residual) run(options, residual, pool);
}

}  // namespace
}  // namespace quatrain::bench

int main(int count, char** arguments) {
  try {
    quatrain::bench::main_of(count, arguments);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
