// Whole generations of a model's shape with random weights on this GPU, the papers' setting: prompts of 2,048
// tokens, 128 tokens each after them, greedy, at batch 4, 8 and 16; time, peak memory and energy.
//   generation_cuda_bench [SHAPE]               default llama3-8b
//   generation_cuda_bench --invariant [SHAPE]   what --batch-invariant costs instead
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <fmt/core.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "engine/cuda/cuda_engine.h"
#include "model/shape_file.h"
#include "ops/cuda/error.h"
#include "random_source.h"

namespace quatrain {
namespace {

using bench::Format;
using bench::seconds_since;

constexpr int64_t kInput = 2048, kOutput = 128, kMostSequences = 16;

// The driver's count of joules since it was loaded, for the first GPU; none where it keeps none.
class EnergyCounter {
 public:
  EnergyCounter() : library_(dlopen("libnvidia-ml.so.1", RTLD_NOW)) {
    if (library_ == nullptr) return;
    const auto init = reinterpret_cast<int (*)()>(dlsym(library_, "nvmlInit_v2"));
    const auto handle =
        reinterpret_cast<int (*)(unsigned, void**)>(dlsym(library_, "nvmlDeviceGetHandleByIndex_v2"));
    energy_ = reinterpret_cast<int (*)(void*, unsigned long long*)>(
        dlsym(library_, "nvmlDeviceGetTotalEnergyConsumption"));
    if (init == nullptr || handle == nullptr || init() != 0 || handle(0, &device_) != 0) energy_ = nullptr;
  }
  std::optional<double> joules() const {
    unsigned long long millijoules = 0;
    if (energy_ == nullptr || energy_(device_, &millijoules) != 0) return std::nullopt;
    return static_cast<double>(millijoules) * 1e-3;
  }

 private:
  void* library_;
  void* device_ = nullptr;
  int (*energy_)(void*, unsigned long long*) = nullptr;
};

std::unique_ptr<Engine> load(const ModelConfig& config, const Format& format, bool invariant) {
  EngineOptions options;
  options.device = "cuda";
  options.context = 4096;
  options.kv_tokens = kMostSequences * (kInput + kOutput + 64);
  options.batch_invariant = invariant;
  return make_cuda_engine(std::make_unique<bench::RandomSource>(config, format), options);
}

double gigabytes_in_use() {
  size_t free = 0, total = 0;
  ops::cuda_check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return static_cast<double>(total - free) * 1e-9;
}

struct Generation {
  double prefill, decode;        // seconds
  std::optional<double> joules;  // of the decoding
};

Generation generate(Engine& engine, int64_t batch, int64_t input, int64_t output,
                    const EnergyCounter& energy) {
  std::vector<int64_t> sequences;
  Generation result{};
  result.prefill = bench::prefill(engine, batch, input, sequences);
  const auto tokens = bench::random_tokens(batch, engine.config().vocabulary, 9);
  const std::optional<double> before = energy.joules();
  const auto start = std::chrono::steady_clock::now();
  dynamic_cast<GreedyEngine&>(engine).greedy(sequences, tokens, output);
  result.decode = seconds_since(start);
  if (before) result.joules = *energy.joules() - *before;
  for (const int64_t sequence : sequences) engine.free_sequence(sequence);
  return result;
}

void measure(const ModelConfig& config, const Format& format) {
  const double before = gigabytes_in_use();
  const auto engine = load(config, format, false);
  const EnergyCounter energy;
  const double loaded = gigabytes_in_use();
  generate(*engine, 1, kInput, 4, energy);
  for (const int64_t batch : {4, 8, 16}) {
    std::vector<Generation> runs;
    for (int i = 0; i < 3; ++i) runs.push_back(generate(*engine, batch, kInput, kOutput, energy));
    std::sort(runs.begin(), runs.end(), [](const Generation& a, const Generation& b) {
      return a.prefill + a.decode < b.prefill + b.decode;
    });
    const Generation& median = runs[1];
    const auto tokens = static_cast<double>(batch * kOutput);
    fmt::print("{:<26} batch {:2}: {:8.1f} ms ({:.1f} prompts, {:.1f} decoding), {:7.0f} tok/s of the output",
               format.name, batch, (median.prefill + median.decode) * 1e3, median.prefill * 1e3,
               median.decode * 1e3, tokens / (median.prefill + median.decode));
    if (median.joules) fmt::print(", {:.2f} tokens a joule while decoding", tokens / *median.joules);
    fmt::print("\n");
  }
  fmt::print(
      "{:<26} GPU memory {:.2f} GB at its peak, {:.2f} after loading (KV cache of {} tokens and {:.2f} from "
      "before "
      "included)\n",
      format.name, gigabytes_in_use(), loaded, engine->pages_in_all() * 64, before);
  std::fflush(stdout);
}

void measure_invariant(const ModelConfig& config, const Format& format) {
  const EnergyCounter energy;
  for (const bool invariant : {false, true}) {
    const auto engine = load(config, format, invariant);
    generate(*engine, 1, kInput, 4, energy);
    for (const int64_t batch : {1, 4, 16}) {
      const Generation first = generate(*engine, batch, 1024, kOutput, energy),
                       second = generate(*engine, batch, 1024, kOutput, energy);
      fmt::print("{:<26}{} batch {:2}, 1,024 tokens each: prompts {:7.0f} tok/s, decoding {:7.0f} tok/s\n",
                 format.name, invariant ? ", batch-invariant" : "", batch,
                 static_cast<double>(batch * 1024) / std::min(first.prefill, second.prefill),
                 static_cast<double>(batch * kOutput) / std::min(first.decode, second.decode));
    }
    fmt::print("{:<26}{} GPU memory {:.2f} GB\n", format.name, invariant ? ", batch-invariant" : "",
               gigabytes_in_use());
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace quatrain

int main(int argc, char** argv) try {
  using namespace quatrain;
  const bool invariant = argc > 1 && std::string(argv[1]) == "--invariant";
  const int shape = invariant ? 2 : 1;
  ModelConfig config = find_shape(argc > shape ? argv[shape] : "llama3-8b");
  config.max_positions = std::max<int64_t>(config.max_positions, 4096);
  const auto four = [](int64_t) { return 4; };
  const Format full{"W16A16KV16", false}, residual{"W4A4KV4, residual 10 %", true, 0.1, four},
      plain{"W4A4KV4", true, 0, four};
  if (invariant) {
    measure_invariant(config, residual);
    measure_invariant(config, full);
    return 0;
  }
  for (const Format& format : {plain, residual, full}) measure(config, format);
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
