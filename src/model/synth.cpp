#include "model/synth.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/half.h"
#include "base/progress.h"
#include "base/rng.h"
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

struct Distribution {
  float mean = 0, deviation = 0;
};

Distribution distribution_of(const ModelConfig& config, const StoredTensor& tensor) {
  if (tensor.norm) return {1 - config.norm_offset, 0};
  if (tensor.shape.size() == 1) return {0, 0.02f};
  const float width = 1 / std::sqrt(static_cast<float>(tensor.shape.back()));
  const bool residual = tensor.parts[0].find("o_proj") != std::string::npos ||
                        tensor.parts[0].find("down_proj") != std::string::npos;
  return {0, residual ? width / std::sqrt(2 * static_cast<float>(config.layers)) : width};
}

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

void synthesize(const ModelConfig& config, const fs::path& directory, const SynthOptions& options) {
  ModelConfig written = config;
  written.dtype = options.dtype;
  const auto bytes = static_cast<int64_t>(options.dtype == "float32" ? 4 : 2);
  const std::string type = options.dtype == "float32" ? "F32" : options.dtype == "float16" ? "F16" : "BF16";
  AtomicDirectory target(directory);
  const std::vector<StoredTensor> tensors = hub_layout(config);
  const auto total = static_cast<uint64_t>(parameter_count(config) * bytes);
  const uint64_t free = fs::space(target.path()).available;
  require(total <= free, "{}: the model needs {:.1f} GB, the disk has {:.1f} GB free", directory.string(),
          static_cast<double>(total) * 1e-9, static_cast<double>(free) * 1e-9);

  SafetensorsWriter writer(target.path(), SafetensorsWriter::balanced(total, options.shard_bytes));
  ThreadPool pool(options.threads);
  std::vector<std::byte> chunk;
  Progress progress("tensors", static_cast<int64_t>(tensors.size()));
  for (size_t i = 0; i < tensors.size(); ++i) {
    const StoredTensor& tensor = tensors[i];
    const Distribution distribution = distribution_of(config, tensor);
    const int64_t elements = tensor.elements();
    writer.begin(tensor.name, type, tensor.shape);
    for (int64_t first = 0; first < elements; first += kChunkValues) {
      const int64_t count = std::min(kChunkValues, elements - first);
      chunk.resize(static_cast<size_t>(count * bytes));
      pool.parallel_for((count + kBlock - 1) / kBlock, 1, [&](int64_t begin, int64_t end, int) {
        std::vector<float> values(static_cast<size_t>(kBlock));
        for (int64_t block = begin; block < end; ++block) {
          const int64_t at = block * kBlock;
          const std::span<float> part(values.data(), static_cast<size_t>(std::min(kBlock, count - at)));
          synthetic_values(options.seed, tensor.name, first + at, part);
          for (float& value : part) value = distribution.mean + distribution.deviation * value;
          encode(part, options.dtype, chunk.data() + at * bytes);
        }
      });
      writer.write(chunk);
    }
    progress.update(static_cast<int64_t>(i + 1));
  }
  writer.finish();
  // A rounded embedding scale follows the type of the weights.
  write_file(target.path() / "config.json", written.to_json().dump(2) + "\n");
  target.commit();
}

}  // namespace quatrain
