#include "model/synth.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>

#include "base/error.h"
#include "base/half.h"
#include "base/progress.h"
#include "base/rng.h"
#include "base/sha256.h"
#include "base/thread_pool.h"
#include "checkpoint/safetensors_writer.h"
#include "model/stored_layout.h"

namespace quatrain {
namespace {

constexpr int64_t kBlock = int64_t{1} << 14;        // values that one generator makes
constexpr int64_t kChunkValues = int64_t{1} << 22;  // values in memory at a time

// FNV-1a (Fowler, Noll, Vo): tells tensors apart.
uint64_t name_hash(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3ull;
  return hash;
}

// The sum of four 16-bit uniforms, centred and scaled to variance 1: one draw a value, bounded, near enough
// to normal.
float next_value(SplitMix64& random) {
  const uint64_t bits = random.next();
  const auto sum = static_cast<int32_t>((bits & 0xFFFF) + ((bits >> 16) & 0xFFFF) + ((bits >> 32) & 0xFFFF) +
                                        (bits >> 48));
  constexpr float kScale =
      1.7320508f / 65536.0f;  // sqrt(3) / 2^16: a uniform of width w has variance w^2 / 12
  return (static_cast<float>(sum) - 2.0f * 65535.0f) * kScale;
}

std::string type_of(const std::string& dtype) {
  if (dtype == "float32") return "F32";
  if (dtype == "float16") return "F16";
  if (dtype == "bfloat16") return "BF16";
  fail("dtype \"{}\" is not one of float32, float16, bfloat16", dtype);
}

size_t bytes_of(const std::string& dtype) {
  return dtype == "float32" ? 4 : 2;
}

ModelConfig with_dtype(ModelConfig config, const std::string& dtype) {
  type_of(dtype);
  config.dtype = dtype;
  // Gemma's embedding scale is rounded to the type of the weights; reading the JSON back does it.
  Json json = config.to_json();
  json.erase("embedding_scale");
  return ModelConfig::from_json(json, "synthetic model");
}

struct Distribution {
  float mean = 0, deviation = 0;
};

Distribution distribution_of(const ModelConfig& config, const std::string& name,
                             const std::vector<int64_t>& shape) {
  if (name.ends_with("norm.weight")) return {1 - config.norm_offset, 0};
  if (shape.size() == 1) return {0, 0.02f};
  const float width = 1 / std::sqrt(static_cast<float>(shape.back()));
  const bool residual = name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight");
  return {0, residual ? width / std::sqrt(2 * static_cast<float>(config.layers)) : width};
}

int64_t elements_of(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

std::map<std::string, std::vector<int64_t>, std::less<>> canonical_shapes(const ModelConfig& config) {
  std::map<std::string, std::vector<int64_t>, std::less<>> shapes;
  for (const PlainShape& tensor : plain_tensors_of_model(config)) shapes[tensor.name] = tensor.shape;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    for (const PlainShape& tensor : plain_tensors_of_layer(config, layer)) shapes[tensor.name] = tensor.shape;
    for (const LinearShape& linear : linears_of_layer(config, layer)) {
      shapes[linear.name + ".weight"] = {linear.out, linear.in};
      if (linear.bias) shapes[linear.name + ".bias"] = {linear.out};
    }
  }
  return shapes;
}

float round_to(float value, const std::string& dtype) {
  if (dtype == "float16") return fp16_to_float(float_to_fp16(value));
  return dtype == "bfloat16" ? bf16_to_float(float_to_bf16(value)) : value;
}

class SyntheticCheckpoint : public Checkpoint {
 public:
  SyntheticCheckpoint(const ModelConfig& config, const SynthOptions& options)
      : options_(options), shapes_(canonical_shapes(config)) {
    config_ = with_dtype(config, options.dtype);
    path_ = fmt::format("synthetic {} model", config.architecture);
  }

  bool has(const std::string& name) const override { return shapes_.contains(name); }
  std::vector<int64_t> shape(const std::string& name) const override {
    const auto found = shapes_.find(name);
    require(found != shapes_.end(), "{}: the model has no tensor {}", path_.string(), name);
    return found->second;
  }
  std::vector<float> read(const std::string& name) const override {
    return read_rows(name, 0, shape(name).front());
  }
  std::vector<float> read_rows(const std::string& name, int64_t begin, int64_t end) const override {
    const std::vector<int64_t> dimensions = shape(name);
    require(0 <= begin && begin <= end && end <= dimensions.front(), "{}: tensor {} has no rows [{}, {})",
            path_.string(), name, begin, end);
    const int64_t width = dimensions.size() < 2 ? 1 : dimensions.back();
    std::vector<float> values(static_cast<size_t>((end - begin) * width));
    synthetic_values(options_.seed, name, begin * width, values);
    const Distribution distribution = distribution_of(config_, name, dimensions);
    for (float& value : values)
      value = round_to(distribution.mean + distribution.deviation * value, options_.dtype);
    return values;
  }
  std::string stored_type(const std::string&) const override { return type_of(options_.dtype); }
  uint64_t stored_bytes(const std::string& name) const override {
    return static_cast<uint64_t>(elements_of(shape(name))) * bytes_of(options_.dtype);
  }
  std::string fingerprint() const override {
    return sha256_hex(
        fmt::format("synthetic {} {} {}", options_.seed, options_.dtype, config_.to_json().dump()));
  }

 private:
  SynthOptions options_;
  std::map<std::string, std::vector<int64_t>, std::less<>> shapes_;
};

void encode(std::span<const float> values, const std::string& dtype, std::byte* out) {
  for (const float value : values) {
    if (dtype == "float32") {
      std::memcpy(out, &value, 4);
      out += 4;
    } else {
      const uint16_t half = dtype == "float16" ? float_to_fp16(value) : float_to_bf16(value);
      std::memcpy(out, &half, 2);
      out += 2;
    }
  }
}

}  // namespace

void synthetic_values(uint64_t seed, std::string_view tensor, int64_t begin, std::span<float> out) {
  const uint64_t base = SplitMix64(seed ^ name_hash(tensor)).next();
  const int64_t end = begin + static_cast<int64_t>(out.size());
  for (int64_t block = begin / kBlock; block * kBlock < end; ++block) {
    SplitMix64 random(SplitMix64(base + static_cast<uint64_t>(block)).next());
    for (int64_t at = block * kBlock; at < std::min(end, (block + 1) * kBlock); ++at) {
      const float value = next_value(random);
      if (at >= begin) out[static_cast<size_t>(at - begin)] = value;
    }
  }
}

std::unique_ptr<Checkpoint> synthetic_checkpoint(const ModelConfig& config, const SynthOptions& options) {
  return std::make_unique<SyntheticCheckpoint>(config, options);
}

void synthesize(const ModelConfig& shape, const fs::path& directory, const SynthOptions& options) {
  const ModelConfig config = with_dtype(shape, options.dtype);
  const auto bytes = static_cast<int64_t>(bytes_of(options.dtype));
  AtomicDirectory target(directory);
  target.clear();
  const std::vector<StoredTensor> tensors = hub_layout(config);
  const auto shapes = canonical_shapes(config);
  const auto total = static_cast<uint64_t>(parameter_count(config) * bytes);
  const uint64_t free = fs::space(target.path()).available;
  require(total <= free, "{}: the model needs {:.3f} GB, the disk has {:.3f} GB free", directory.string(),
          static_cast<double>(total) * 1e-9, static_cast<double>(free) * 1e-9);

  SafetensorsWriter writer(target.path(), SafetensorsWriter::balanced(total, options.shard_bytes));
  ThreadPool pool(options.threads);
  std::vector<std::byte> chunk;
  const auto write_part = [&](const std::string& name) {
    const std::vector<int64_t>& dimensions = shapes.at(name);
    const Distribution distribution = distribution_of(config, name, dimensions);
    const int64_t elements = elements_of(dimensions);
    for (int64_t first = 0; first < elements; first += kChunkValues) {
      const int64_t count = std::min(kChunkValues, elements - first);
      chunk.resize(static_cast<size_t>(count * bytes));
      pool.parallel_for((count + kBlock - 1) / kBlock, 1, [&](int64_t begin, int64_t end, int) {
        std::vector<float> values(static_cast<size_t>(kBlock));
        for (int64_t block = begin; block < end; ++block) {
          const int64_t at = block * kBlock;
          const std::span<float> part(values.data(), static_cast<size_t>(std::min(kBlock, count - at)));
          synthetic_values(options.seed, name, first + at, part);
          for (float& value : part) value = distribution.mean + distribution.deviation * value;
          encode(part, options.dtype, chunk.data() + at * bytes);
        }
      });
      writer.write(chunk);
    }
  };
  Progress progress("tensors", static_cast<int64_t>(tensors.size()));
  for (size_t i = 0; i < tensors.size(); ++i) {
    writer.begin(tensors[i].name, type_of(options.dtype), tensors[i].shape);
    for (const std::string& part : tensors[i].parts) write_part(part);
    progress.update(static_cast<int64_t>(i + 1));
  }
  writer.finish();
  write_file(target.path() / "config.json", config.to_json().dump(2) + "\n");
  target.commit();
}

}  // namespace quatrain
