// A model's shape with random weights, in 16 bits or in nibble planes: what the engine's benchmarks load.
#pragma once

#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/rng.h"
#include "engine/engine.h"
#include "engine/weight_source.h"

namespace quatrain::bench {

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

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

inline std::vector<int32_t> random_tokens(int64_t count, int64_t vocabulary, uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i)
    ids.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(vocabulary))));
  return ids;
}

// Seconds of prompts of `length` tokens, all at once; the sequences stay.
inline double prefill(Engine& engine, int64_t batch, int64_t length, std::vector<int64_t>& sequences) {
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

}  // namespace quatrain::bench
