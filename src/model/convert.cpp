#include "model/convert.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "checkpoint/element_type.h"
#include "checkpoint/gguf_codes.h"
#include "checkpoint/gguf_writer.h"
#include "checkpoint/safetensors_writer.h"
#include "model/architecture.h"
#include "model/checkpoint.h"
#include "model/gguf_metadata.h"
#include "model/stored_layout.h"
#include "model/text_files.h"

namespace quatrain {
namespace {

constexpr int64_t kChunkValues = int64_t{1} << 22;  // values in memory at a time

// Rows i and i + D/2 of every head side by side.
template <typename T>
std::vector<T> pair_rows(const std::vector<T>& rows, int64_t head_dim, int64_t width) {
  std::vector<T> paired(rows.size());
  const int64_t count = static_cast<int64_t>(rows.size()) / width, half = head_dim / 2;
  for (int64_t row = 0; row < count; ++row) {
    const int64_t within = row % head_dim, to = row - within + 2 * (within % half) + within / half;
    std::copy_n(rows.data() + row * width, width, paired.data() + to * width);
  }
  return paired;
}

// To little-endian bytes of F32, F16 or BF16, nearest even. The writer of GGUF does the same on its own.
std::vector<std::byte> encode(std::span<const float> values, std::string_view type, const std::string& name) {
  return encode_values(*find_element_type(type), values, fmt::format("tensor {}", name));
}

void to_hub(const Checkpoint& checkpoint, const fs::path& output, const ConvertOptions& options) {
  const Architecture& row = architecture_of(checkpoint.config());
  const std::string type = stored_type_of(options.dtype.empty() ? checkpoint.config().dtype : options.dtype);
  if (type[0] == 'Q') fail_usage("--dtype {}: safetensors holds f32, f16 or bf16", options.dtype);
  ModelConfig config = checkpoint.config();
  config.dtype = type == "F32" ? "float32" : type == "F16" ? "float16" : "bfloat16";
  // The hub's files hold gains without the architecture's offset, GGUF's with it.
  const float norm_shift = config.norm_offset - row.norm_offset;
  config.norm_offset = row.norm_offset;

  AtomicDirectory directory(output);
  directory.clear();
  const std::vector<StoredTensor> tensors = hub_layout(config);
  uint64_t total = 0;
  for (const StoredTensor& tensor : tensors)
    total += static_cast<uint64_t>(tensor.elements()) * (type == "F32" ? 4 : 2);
  SafetensorsWriter writer(directory.path(), SafetensorsWriter::balanced(total, options.shard_bytes));
  Progress progress("tensors", static_cast<int64_t>(tensors.size()));
  for (size_t i = 0; i < tensors.size(); ++i) {
    writer.begin(tensors[i].name, type, tensors[i].shape);
    stream_tensor(checkpoint, tensors[i], norm_shift,
                  [&](std::span<const float> rows) { writer.write(encode(rows, type, tensors[i].name)); });
    progress.update(static_cast<int64_t>(i + 1));
  }
  writer.finish();
  write_file(directory.path() / "config.json", config.to_json().dump(2) + "\n");
  write_text_files(checkpoint.path(), config, directory.path());
  directory.commit();
}

// Q4_0 or Q8_0 where blocks of 32 can hold the source's integers; empty elsewhere.
std::string type_of_codes(const Checkpoint& checkpoint, const StoredTensor& tensor) {
  int bits = 4;
  for (const std::string& part : tensor.parts) {
    const auto codes = checkpoint.read_codes(part, 0, std::min<int64_t>(1, checkpoint.shape(part).front()));
    if (!codes || codes->columns % 32 != 0 || codes->group % 32 != 0) return "";
    bits = std::max(bits, codes->bits);
  }
  return bits == 4 ? "Q4_0" : "Q8_0";
}

void to_gguf(const Checkpoint& checkpoint, const fs::path& output, const ConvertOptions& options) {
  const ModelConfig& config = checkpoint.config();
  const std::string type = stored_type_of(options.dtype.empty() ? config.dtype : options.dtype);
  GgufWriter writer(output);
  write_gguf_config(config, type, writer);
  write_gguf_vocabulary(config, find_tokenizer(checkpoint.path()).get(), writer);
  std::vector<StoredTensor> tensors = gguf_layout(config);
  const std::vector<float> divisors = gguf_rope_divisors(config);
  if (!divisors.empty()) writer.declare("rope_freqs.weight", {static_cast<int64_t>(divisors.size())}, "F32");
  size_t narrow = 0;
  std::vector<std::string> types;
  for (const StoredTensor& tensor : tensors) {
    const std::string kept = tensor.plain || !options.dtype.empty() ? "" : type_of_codes(checkpoint, tensor);
    const bool fallback = kept.empty() && type[0] == 'Q' && tensor.shape.back() % 32 != 0;
    narrow += fallback && !tensor.plain ? 1 : 0;
    types.push_back(tensor.plain ? "F32" : !kept.empty() ? kept : fallback ? "F16" : type);
    writer.declare(tensor.name, tensor.shape, types.back());
  }
  if (narrow > 0) log_warn("{} tensors whose rows do not divide by 32 are F16 instead of {}", narrow, type);
  if (!divisors.empty()) writer.write("rope_freqs.weight", divisors);
  Progress progress("tensors", static_cast<int64_t>(tensors.size()));
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (options.dtype.empty() && types[i][0] == 'Q')
      writer.write_blocks(tensors[i].name, encode_gguf_codes(*tensor_codes(checkpoint, tensors[i]), types[i],
                                                             tensors[i].name));
    else
      stream_tensor(checkpoint, tensors[i], config.norm_offset,
                    [&](std::span<const float> rows) { writer.write(tensors[i].name, rows); });
    progress.update(static_cast<int64_t>(i + 1));
  }
  writer.finish();
}

}  // namespace

std::string stored_type_of(const std::string& dtype) {
  if (dtype == "float32" || dtype == "f32") return "F32";
  if (dtype == "float16" || dtype == "f16") return "F16";
  if (dtype == "bfloat16" || dtype == "bf16") return "BF16";
  if (dtype == "q8_0" || dtype == "q4_0" || dtype == "q4_1") return std::string("Q") + dtype.substr(1);
  fail_usage("--dtype \"{}\" is not one of f32, f16, bf16, and for GGUF q8_0, q4_0, q4_1", dtype);
}

void stream_tensor(const Checkpoint& checkpoint, const StoredTensor& tensor, float norm_shift,
                   const std::function<void(std::span<const float>)>& write) {
  for (const std::string& part : tensor.parts) {
    const std::vector<int64_t> shape = checkpoint.shape(part);
    if (shape.size() < 2) {
      std::vector<float> values = checkpoint.read(part);
      if (tensor.norm)
        for (float& value : values) value += norm_shift;
      write(tensor.paired ? pair_rows(values, checkpoint.config().head_dim, 1) : values);
      continue;
    }
    const int64_t unit = tensor.paired ? checkpoint.config().head_dim : 1;
    const int64_t step = std::max<int64_t>(1, kChunkValues / (shape[1] * unit)) * unit;
    for (int64_t row = 0; row < shape[0]; row += step) {
      const std::vector<float> rows = checkpoint.read_rows(part, row, std::min(row + step, shape[0]));
      write(tensor.paired ? pair_rows(rows, unit, shape[1]) : rows);
    }
  }
}

std::optional<StoredCodes> tensor_codes(const Checkpoint& checkpoint, const StoredTensor& tensor) {
  StoredCodes all;
  for (const std::string& part : tensor.parts) {
    auto codes = checkpoint.read_codes(part, 0, checkpoint.shape(part).front());
    if (!codes || (all.rows > 0 && codes->group != all.group)) return std::nullopt;
    if (tensor.paired) {
      codes->codes = pair_rows(codes->codes, checkpoint.config().head_dim, codes->columns);
      codes->scale = pair_rows(codes->scale, checkpoint.config().head_dim, codes->groups());
    }
    if (all.rows == 0) {
      all = std::move(*codes);
      continue;
    }
    all.bits = std::max(all.bits, codes->bits);
    all.rows += codes->rows;
    all.codes.insert(all.codes.end(), codes->codes.begin(), codes->codes.end());
    all.scale.insert(all.scale.end(), codes->scale.begin(), codes->scale.end());
  }
  return all;
}

static void check_usage(const fs::path& output, const ConvertOptions& options) {
  if (!options.dtype.empty()) stored_type_of(options.dtype);
  if (options.format != "safetensors" && options.format != "gguf")
    fail_usage("--to \"{}\" is not one of safetensors, gguf", options.format);
  if (options.format == "gguf" && output.extension() != ".gguf")
    fail_usage("{}: the name of a GGUF file must end in .gguf", output.string());
}

void convert_model(const Checkpoint& model, const fs::path& output, const ConvertOptions& options) {
  check_usage(output, options);
  require(!fs::exists(output) || (options.format == "safetensors" && fs::is_directory(output)),
          "{}: exists already", output.string());
  if (options.format == "gguf") {
    to_gguf(model, output, options);
  } else {
    to_hub(model, output, options);
  }
}

void convert_model(const fs::path& model, const fs::path& output, const ConvertOptions& options) {
  check_usage(output, options);  // before the model is opened
  convert_model(*open_checkpoint(model), output, options);
}

}  // namespace quatrain
