// Whole passes of a model's shape with random weights, in 16 bits and in nibble planes, on this GPU:
//   engine_cuda_bench [SHAPE [LAYERS]]   a shape as `quatrain synth --shape` takes it; default llama3-8b
// With LAYERS, the first so many layers run once, for a profiler: 16 prompts of 128 at once, then a token at
// batch 1 and 16. Decoding is greedy and without the host in between; prompts are random tokens.
#include <cuda_runtime.h>
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <string>

#include "base/error.h"
#include "base/rng.h"
#include "engine/cuda/cuda_engine.h"
#include "model/shape_file.h"
#include "ops/cuda/error.h"

namespace quatrain {
namespace {

struct Format {
  std::string name;
  bool quantized = true;
  double residual = 0;                          // share of the blocks
  std::function<int(int64_t layer)> bits = {};  // of a layer's activations
};

// Random weights out of one block of random bytes, so that loading costs copies only.
class RandomSource : public WeightSource {
 public:
  RandomSource(ModelConfig config, Format format) : config_(std::move(config)), format_(std::move(format)) {
    SplitMix64 random(1);
    random_.resize(size_t{1} << 25);
    for (uint64_t& word : random_) word = random.next();
    for (int64_t layer = 0; layer < config_.layers; ++layer)
      for (const LinearShape& linear : linears_of_layer(config_, layer))
        shapes_[linear.name] = {linear.out, linear.in, layer};
    shapes_["lm_head"] = {config_.vocabulary, config_.hidden, -1};
    shapes_["model.embed_tokens"] = {config_.vocabulary, config_.hidden, -1};
  }

  std::string where() const override { return format_.name; }
  const ModelConfig& config() const override { return config_; }
  void expect(const std::string&, const std::vector<int64_t>&) const override {}
  std::vector<float> vector(const std::string&, int64_t size) const override {
    return std::vector<float>(static_cast<size_t>(size), 1.0f);
  }

  void read_rows(const std::string& name, int64_t begin, int64_t end, float* out) const override {
    const int64_t columns = shapes_.at(name.substr(0, name.rfind('.'))).columns;
    const auto* bytes = reinterpret_cast<const int8_t*>(random_.data());
    const size_t mask = random_.size() * 8 - 1, start = static_cast<size_t>(begin * columns * 7);
    const float scale = 0x1p-6f / std::sqrt(static_cast<float>(columns));
    const uint32_t keep = 0xFFFF0000u;
    for (int64_t i = 0; i < (end - begin) * columns; ++i) {
      const float value = scale * static_cast<float>(bytes[(start + static_cast<size_t>(i)) & mask]);
      uint32_t bits;
      std::memcpy(&bits, &value, 4);
      bits &= keep;
      std::memcpy(out + i, &bits, 4);
    }
  }

  bool quantized(const std::string&) const override { return format_.quantized; }
  NibblePlanes planes(const std::string& linear) const override {
    const Shape& shape = shapes_.at(linear);
    const bool wide = shape.layer < 0;  // embedding and head: 8 bits
    NibblePlanes planes;
    planes.rows = shape.rows;
    planes.columns = shape.columns;
    planes.hi.resize(static_cast<size_t>(shape.rows * shape.columns / 2));
    fill(planes.hi, static_cast<size_t>(shape.layer + 2));
    planes.scale.assign(static_cast<size_t>(shape.rows),
                        0.25f / std::sqrt(static_cast<float>(shape.columns)));
    SplitMix64 random(static_cast<uint64_t>(shape.layer + 7));
    const auto chosen = static_cast<uint64_t>(format_.residual * 1000);
    for (int64_t block = 0; block < planes.block_rows() * planes.block_columns(); ++block)
      if (wide || random.below(1000) < chosen) planes.residual_index.push_back(static_cast<int32_t>(block));
    planes.lo.resize(planes.residual_index.size() *
                     static_cast<size_t>(kResidualRows * planes.residual_block / 2));
    fill(planes.lo, 3);
    return planes;
  }

  LinearPolicy policy(const std::string& linear) const override {
    LinearPolicy policy;
    if (!format_.quantized) return policy;
    const int64_t layer = shapes_.at(linear).layer;
    policy.activation = {layer < 0 ? 8 : format_.bits(layer), 128, false};
    if (linear.ends_with("down_proj"))
      policy.input_transform = {.kind = "grouped-offset-hadamard", .order = 128, .seed = 3};
    return policy;
  }
  KvPolicy kv(int64_t) const override {
    KvPolicy kv;
    if (!format_.quantized) return kv;
    kv.bits = 4;
    kv.key_transform = {.kind = "hadamard", .order = config_.head_dim, .seed = 5};
    return kv;
  }

 private:
  struct Shape {
    int64_t rows, columns, layer;
  };
  void fill(std::vector<uint8_t>& bytes, size_t offset) const {
    const auto* from = reinterpret_cast<const uint8_t*>(random_.data());
    const size_t all = random_.size() * 8;
    for (size_t done = 0; done < bytes.size();) {
      const size_t start = (done + offset * 4099) % all;
      const size_t count = std::min(bytes.size() - done, all - start);
      std::memcpy(bytes.data() + done, from + start, count);
      done += count;
    }
  }

  ModelConfig config_;
  Format format_;
  std::vector<uint64_t> random_;
  std::map<std::string, Shape> shapes_;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::vector<int32_t> random_tokens(int64_t count, int64_t vocabulary, uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i)
    ids.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(vocabulary))));
  return ids;
}

// Seconds of prompts of `length` tokens, all at once; the sequences stay.
double prefill(Engine& engine, int64_t batch, int64_t length, std::vector<int64_t>& sequences) {
  std::vector<std::vector<int32_t>> prompts;
  std::vector<BatchItem> items;
  sequences.clear();
  for (int64_t i = 0; i < batch; ++i) {
    prompts.push_back(random_tokens(length, engine.config().vocabulary, static_cast<uint64_t>(i)));
    sequences.push_back(engine.new_sequence());
  }
  for (size_t i = 0; i < prompts.size(); ++i)
    items.push_back({sequences[i], prompts[i], BatchItem::Logits::Last});
  const auto start = std::chrono::steady_clock::now();
  engine.forward(items, [](int64_t, int64_t, std::span<const float>) {});
  return seconds_since(start);
}

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
