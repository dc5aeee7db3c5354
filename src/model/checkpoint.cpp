#include "model/checkpoint.h"

#include "base/error.h"
#include "checkpoint/llama2c.h"
#include "checkpoint/packed/packed_source.h"
#include "model/architecture.h"
#include "model/gguf_config.h"
#include "model/json_field.h"
#include "model/sliced_checkpoint.h"

namespace quatrain {
namespace {

bool names_dtype(const Json& json) {
  const Json* text = json_field(json, "text_config");
  for (const Json* part : {&json, text})
    for (const char* key : {"dtype", "torch_dtype"})
      if (part != nullptr && json_field(*part, key) != nullptr) return true;
  return false;
}

// The type of the weights, where the config does not say: the embedding's.
std::string dtype_of(const TensorSource& source) {
  for (const TensorInfo& tensor : source.tensors()) {
    if (!tensor.name.ends_with("embed_tokens.weight")) continue;
    return tensor.type == "BF16" ? "bfloat16" : tensor.type == "F16" ? "float16" : "float32";
  }
  return "float32";
}

std::unique_ptr<Checkpoint> open_hub(const fs::path& directory) {
  const fs::path config_file = directory / "config.json";
  const std::string where = config_file.string();
  require(fs::exists(config_file),
          "{}: no config.json; a model directory has config.json and model.safetensors", directory.string());
  Json json = read_json(config_file);
  if (const Json* quantization = json_field(json, "quantization_config"))
    require(json_string_or(*quantization, "quant_method", "", where) != "quatrain",
            "{}: this is a quantised artifact; a 16-bit model is needed here", directory.string());
  if (const fs::path modelopt = directory / "hf_quant_config.json"; fs::exists(modelopt)) {
    const Json modelopt_json = read_json(modelopt);
    const Json* quantization = json_field(modelopt_json, "quantization");
    fail("{}: the weights are already quantised ({}); give the 16-bit model", modelopt.string(),
         quantization == nullptr
             ? "modelopt"
             : json_string_or(*quantization, "quant_algo", "modelopt", modelopt.string()));
  }
  const auto packing = read_packed_config(directory, json);
  if (packing) json.erase("quantization_config");  // the model is one of plain weights from here on
  ModelConfig config = ModelConfig::from_json(json, where);
  std::unique_ptr<TensorSource> source = open_safetensors(directory);
  const PackedSource* packed = nullptr;
  if (packing) {
    auto unpacked = std::make_unique<PackedSource>(std::move(source), *packing);
    packed = unpacked.get();
    source = std::move(unpacked);
  }
  if (!names_dtype(json)) {
    json["dtype"] = dtype_of(*source);
    config = ModelConfig::from_json(json, where);
  }
  const WeightNamer names = hub_namer(*source, config);
  const WeightNamer namer = [packed, names](std::string_view name) {
    return packed != nullptr && packed->is_part(name) ? std::vector<std::string>{} : names(name);
  };
  return std::make_unique<SlicedCheckpoint>(directory, std::move(config), std::move(source), namer, false);
}

std::unique_ptr<Checkpoint> open_gguf(const fs::path& path) {
  auto file = std::make_unique<GgufFile>(path);
  ModelConfig config = config_from_gguf(*file);
  const WeightNamer namer = gguf_namer(config);
  const bool paired = architecture_of(config).gguf == "llama";
  return std::make_unique<SlicedCheckpoint>(path, std::move(config), std::move(file), namer, paired);
}

// llama2.c states neither the epsilon, the base nor the special tokens: its program has them built in, and
// ends a text at token 1 as well as at 2.
std::unique_ptr<Checkpoint> open_llama2c(const fs::path& path) {
  auto file = std::make_unique<Llama2cFile>(path);
  const Llama2cShape& shape = file->shape();
  const Json json = {{"model_type", "llama"},
                     {"vocab_size", shape.vocabulary},
                     {"hidden_size", shape.hidden},
                     {"intermediate_size", shape.intermediate},
                     {"num_hidden_layers", shape.layers},
                     {"num_attention_heads", shape.heads},
                     {"num_key_value_heads", shape.kv_heads},
                     {"max_position_embeddings", shape.positions},
                     {"rms_norm_eps", 1e-5},
                     {"tie_word_embeddings", shape.tied},
                     {"torch_dtype", "float32"},
                     {"bos_token_id", 1},
                     {"eos_token_id", {2, 1}}};
  ModelConfig config = ModelConfig::from_json(json, path.string());
  const WeightNamer namer = hub_namer(*file, config);
  return std::make_unique<SlicedCheckpoint>(path, std::move(config), std::move(file), namer,
                                            Llama2cFile::interleaved_rope());
}

}  // namespace

std::unique_ptr<Checkpoint> open_checkpoint(const fs::path& path) {
  require(fs::exists(path), "{}: no such model; give a model directory, a .gguf file or a llama2.c .bin file",
          path.string());
  if (fs::is_directory(path)) return open_hub(path);
  if (path.extension() == ".gguf") return open_gguf(path);
  if (path.extension() == ".bin") return open_llama2c(path);
  fail("{}: not a model; give a model directory, a .gguf file or a llama2.c .bin file", path.string());
}

}  // namespace quatrain
