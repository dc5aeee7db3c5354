// Random tiny models for tests, written as a hub directory.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/rng.h"
#include "checkpoint/safetensors_writer.h"
#include "model/config.h"

namespace quatrain {

struct TestTensor {
  std::vector<int64_t> shape;
  std::vector<float> values;
};
using TestTensors = std::map<std::string, TestTensor>;

inline TestTensor random_tensor(std::vector<int64_t> shape, SplitMix64& random) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  TestTensor tensor{std::move(shape), std::vector<float>(static_cast<size_t>(count))};
  // Multiples of 1/128 in [-1, 1): exact in BF16, so every format holds the same values.
  for (float& value : tensor.values) value = static_cast<float>(random.below(256)) / 128.0f - 1.0f;
  return tensor;
}

/// Every canonical tensor that the config asks for.
inline TestTensors random_tensors(const ModelConfig& config, uint64_t seed = 1) {
  SplitMix64 random(seed);
  TestTensors tensors;
  const auto add = [&](const std::string& name, const std::vector<int64_t>& shape) {
    tensors[name] = random_tensor(shape, random);
  };
  for (const PlainShape& tensor : plain_tensors_of_model(config)) add(tensor.name, tensor.shape);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    for (const PlainShape& tensor : plain_tensors_of_layer(config, layer)) add(tensor.name, tensor.shape);
    for (const LinearShape& linear : linears_of_layer(config, layer)) {
      add(linear.name + ".weight", {linear.out, linear.in});
      if (linear.bias) add(linear.name + ".bias", {linear.out});
    }
  }
  return tensors;
}

/// Rows of the parts one after another, under one name.
inline TestTensor stack(const TestTensors& tensors, const std::vector<std::string>& names,
                        std::vector<int64_t> shape) {
  TestTensor stacked{std::move(shape), {}};
  for (const std::string& name : names) {
    const auto& values = tensors.at(name).values;
    stacked.values.insert(stacked.values.end(), values.begin(), values.end());
  }
  return stacked;
}

/// A fresh folder under the build tree.
inline fs::path fresh_folder(const std::string& name) {
  const fs::path folder = fs::path(QUATRAIN_BINARY_DIR) / "model-tests" / name;
  fs::remove_all(folder);
  fs::create_directories(folder);
  return folder;
}

inline void write_hub(const fs::path& folder, const Json& config, const TestTensors& tensors,
                      uint64_t shard_bytes = 1 << 30) {
  write_file(folder / "config.json", config.dump());
  SafetensorsWriter writer(folder, shard_bytes);
  for (const auto& [name, tensor] : tensors)
    writer.add(name, "F32", tensor.shape, std::as_bytes(std::span(tensor.values)));
  writer.finish();
}

}  // namespace quatrain
