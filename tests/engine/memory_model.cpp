#include "memory_model.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "base/half.h"
#include "base/rng.h"

namespace quatrain {

ModelConfig small_config() {
  ModelConfig config;
  config.architecture = "llama";
  config.vocabulary = 97;
  config.hidden = 64;
  config.intermediate = 96;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 16;
  config.max_positions = 512;
  config.norm_epsilon = 1e-5f;
  config.attention_scale = 0.25f;
  config.sliding_window = {0, 0};
  config.dtype = "float32";
  return config;
}

MemoryCheckpoint::MemoryCheckpoint(ModelConfig config, uint64_t seed) {
  config_ = std::move(config);
  path_ = "memory";
  SplitMix64 random(seed);
  const auto add = [&](const std::string& name, std::vector<int64_t> shape, float mean, float spread) {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    Tensor tensor{std::move(shape), std::vector<float>(static_cast<size_t>(count))};
    for (float& value : tensor.values) value = mean + spread * static_cast<float>(random.normal());
    tensors_[name] = std::move(tensor);
  };
  for (const PlainShape& plain : plain_tensors_of_model(config_))
    add(plain.name, plain.shape, plain.shape.size() == 1 ? 1.0f : 0.0f,
        plain.shape.size() == 1 ? 0.2f : 1.0f);
  for (int64_t layer = 0; layer < config_.layers; ++layer) {
    for (const PlainShape& plain : plain_tensors_of_layer(config_, layer))
      add(plain.name, plain.shape, plain.shape.size() == 1 ? 1.0f : 0.0f,
          plain.shape.size() == 1 ? 0.2f : 0.3f);
    for (const LinearShape& linear : linears_of_layer(config_, layer)) {
      add(linear.name + ".weight", {linear.out, linear.in}, 0,
          1.2f / std::sqrt(static_cast<float>(linear.in)));
      if (linear.bias) add(linear.name + ".bias", {linear.out}, 0, 0.3f);
    }
  }
}

std::vector<float> MemoryCheckpoint::read_rows(const std::string& name, int64_t begin, int64_t end) const {
  const Tensor& tensor = tensors_.at(name);
  const int64_t columns = tensor.shape.back();
  return {tensor.values.begin() + begin * columns, tensor.values.begin() + end * columns};
}

NibblePlanes round_to_planes(const MemoryCheckpoint::Tensor& weight, int64_t group, int64_t residual_block,
                             const std::vector<float>& bias) {
  NibblePlanes planes;
  planes.rows = weight.shape[0];
  planes.columns = weight.shape[1];
  planes.weight_group = group;
  planes.residual_block = residual_block;
  planes.bias = bias;
  const int64_t columns = planes.columns, wide = group == 0 ? columns : group;
  planes.hi.resize(static_cast<size_t>(planes.rows * ((columns + 1) / 2)));
  for (int64_t row = 0; row < planes.rows; ++row)
    for (int64_t begin = 0; begin < columns; begin += wide) {
      float top = 0;
      for (int64_t k = begin; k < std::min(begin + wide, columns); ++k)
        top = std::max(top, std::fabs(weight.values[static_cast<size_t>(row * columns + k)]));
      const float scale = top / 7.5f;
      planes.scale.push_back(group == 0 ? scale : fp16_to_float(float_to_fp16(scale)));
    }
  for (int64_t b = 0; b < planes.block_rows() * planes.block_columns(); b += 3)
    planes.residual_index.push_back(static_cast<int32_t>(b));
  const int64_t stride = (residual_block + 1) / 2;
  planes.lo.resize(planes.residual_index.size() * static_cast<size_t>(kResidualRows * stride));
  for (int64_t row = 0; row < planes.rows; ++row)
    for (int64_t k = 0; k < columns; ++k) {
      const float step = planes.scale[static_cast<size_t>(row * planes.groups() + k / wide)];
      const float w = weight.values[static_cast<size_t>(row * columns + k)];
      const int64_t block = row / kResidualRows * planes.block_columns() + k / residual_block;
      int hi = 0;
      if (block % 3 == 0) {
        const int code = std::clamp(static_cast<int>(std::rint(16 * w / step)), -128, 127);
        hi = code >> 4;
        const int64_t at =
            (block / 3 * kResidualRows + row % kResidualRows) * stride + k % residual_block / 2;
        planes.lo[static_cast<size_t>(at)] |=
            static_cast<uint8_t>((code & 15) << (k % residual_block % 2 * 4));
      } else {
        hi = std::clamp(static_cast<int>(std::rint(w / step)), -8, 7);
      }
      planes.hi[static_cast<size_t>(row * ((columns + 1) / 2) + k / 2)] |=
          static_cast<uint8_t>((hi & 15) << (k % 2 * 4));
    }
  return planes;
}

MemoryCheckpoint write_artifact(const MemoryCheckpoint& model, const QuantizationConfig& quantization,
                                const fs::path& directory) {
  MemoryCheckpoint seen = model;
  ArtifactWriter writer(directory);
  for (const auto& [name, tensor] : model.tensors()) {
    const std::string linear = name.substr(0, name.rfind('.'));
    const bool weight = name.ends_with(".weight");
    const bool projection = linear.ends_with("_proj");
    const bool embedding = linear == "model.embed_tokens" && quantization.embedding_bits < 16;
    const bool head = linear == "lm_head" && quantization.lm_head_bits < 16;
    if (!projection && !embedding && !head) {
      writer.add_tensor(name, tensor.shape, tensor.values, "F32");
      continue;
    }
    if (!weight) continue;  // a bias goes with its planes
    const auto bias = model.tensors().find(linear + ".bias");
    const LinearPolicy& policy = quantization.linear(linear);
    const NibblePlanes planes =
        round_to_planes(tensor, policy.weight_group, policy.residual_block,
                        bias == model.tensors().end() ? std::vector<float>{} : bias->second.values);
    writer.add_planes(linear, planes);
    for (int64_t row = 0; row < planes.rows; ++row)
      planes.dequantize_row(row, seen.tensors()[name].values.data() + row * planes.columns);
  }
  ModelConfig written = model.config();
  written.tied_embeddings = quantization.lm_head_tied;
  const Json config = written.to_json();
  EXPECT_EQ(ModelConfig::from_json(config, "test").to_json(), config)
      << "config.json cannot say what the test wants";
  writer.finish(config, quantization, "name = \"test\"\n", Json::object());
  return seen;
}

TemporaryFolder::TemporaryFolder() {
  std::string name = (fs::temp_directory_path() / "quatrain-engine-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace quatrain
