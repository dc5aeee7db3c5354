// Whole passes of a model's shape with random weights, in 16 bits and in nibble planes, on this GPU:
//   engine_cuda_bench [SHAPE [LAYERS]]   a shape as `quatrain synth --shape` takes it; default llama3-8b
// With LAYERS, the first so many layers run once, for a profiler: 16 prompts of 128 at once, then a token at
// batch 1 and 16. Decoding is greedy and without the host in between; prompts are random tokens.
#include <cuda_runtime.h>
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "base/error.h"
#include "engine/cuda/cuda_engine.h"
#include "model/shape_file.h"
#include "ops/cuda/error.h"
#include "random_source.h"

namespace quatrain {
namespace {

using bench::Format;
using bench::prefill;
using bench::random_tokens;
using bench::RandomSource;
using bench::seconds_since;

std::unique_ptr<Engine> load(const ModelConfig& config, const Format& format) {
  EngineOptions options;
  options.device = "cuda";
  options.context = 4096;
  options.kv_tokens = 64 * 1280;
  return make_cuda_engine(std::make_unique<RandomSource>(config, format), options);
}

void run_once(const ModelConfig& config, const Format& format) {
  const auto engine = load(config, format);
  std::vector<int64_t> sequences;
  prefill(*engine, 16, 128, sequences);
  auto& greedy = dynamic_cast<GreedyEngine&>(*engine);
  for (const size_t batch : {size_t{1}, size_t{16}})
    greedy.greedy(std::span(sequences).first(batch),
                  random_tokens(static_cast<int64_t>(batch), config.vocabulary, 9), 1);
}

void measure(const ModelConfig& config, const Format& format) {
  const auto start = std::chrono::steady_clock::now();
  const auto engine = load(config, format);
  size_t free = 0, total = 0;
  ops::cuda_check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  fmt::print(
      "{}: loaded in {:.1f} s, weights {:.2f} GB a token, GPU memory in use {:.1f} GB (KV cache of {} "
      "tokens included)\n",
      format.name, seconds_since(start), static_cast<double>(engine->weight_bytes_per_token()) / 1e9,
      static_cast<double>(total - free) / 1e9, engine->pages_in_all() * 64);
  std::vector<int64_t> sequences;
  const auto release = [&] {
    for (const int64_t sequence : sequences) engine->free_sequence(sequence);
  };
  prefill(*engine, 1, 2048, sequences);  // warms up
  release();
  for (const int64_t batch : {1, 4, 16}) {
    const double seconds = prefill(*engine, batch, 2048, sequences);
    release();
    fmt::print("  prefill {:2} x 2048: {:8.2f} ms, {:8.0f} tok/s\n", batch, seconds * 1e3,
               static_cast<double>(batch * 2048) / seconds);
  }
  for (const int64_t batch : {1, 4, 16, 64}) {
    prefill(*engine, batch, 1024, sequences);
    auto& greedy = dynamic_cast<GreedyEngine&>(*engine);
    const auto tokens = random_tokens(batch, config.vocabulary, 9);
    // The same capture stands in both, so the difference is 64 steps.
    const auto timed = [&](int64_t steps) {
      const auto from = std::chrono::steady_clock::now();
      greedy.greedy(sequences, tokens, steps);
      return seconds_since(from);
    };
    timed(4);
    std::vector<double> times;
    for (int repeat = 0; repeat < 3; ++repeat) {
      const double few = timed(4);
      times.push_back((timed(68) - few) / 64);
      for (const int64_t sequence : sequences) engine->truncate(sequence, 1024);
    }
    std::sort(times.begin(), times.end());
    fmt::print("  decode batch {:2} depth 1024: {:7.3f} ms a step ({:.3f} - {:.3f}), {:8.0f} tok/s\n", batch,
               times[1] * 1e3, times[0] * 1e3, times[2] * 1e3, static_cast<double>(batch) / times[1]);
    release();
  }
  std::fflush(stdout);
}

}  // namespace
}  // namespace quatrain

int main(int argc, char** argv) try {
  using namespace quatrain;
  ModelConfig config = find_shape(argc > 1 ? argv[1] : "llama3-8b");
  config.max_positions = std::max<int64_t>(config.max_positions, 4096);
  const auto four = [](int64_t) { return 4; };
  if (argc > 2) {
    config.layers = std::stoll(argv[2]);
    config.sliding_window.resize(static_cast<size_t>(config.layers));
    run_once(config, {"W16A16KV16", false});
    run_once(config, {"W4A4KV4, residual 10 %", true, 0.1, four});
    return 0;
  }
  const int64_t last = config.layers - 1;
  measure(config, {"W16A16KV16", false});
  measure(config, {"W4A4KV4, residual 10 %", true, 0.1, four});
  measure(config, {"W4A4KV4", true, 0, four});
  measure(config, {"W4A4KV4, residual 10 %, A8 in layers 1, 2, 3 and the last", true, 0.1,
                   [last](int64_t layer) { return (layer >= 1 && layer <= 3) || layer == last ? 8 : 4; }});
  measure(config, {"W4A8KV4, residual 10 %", true, 0.1, [](int64_t) { return 8; }});
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
