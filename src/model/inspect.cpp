#include "model/inspect.h"

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "checkpoint/artifact.h"
#include "model/architecture.h"
#include "model/artifact_config.h"
#include "model/checkpoint.h"

namespace quatrain {
namespace {

// Bits that a group's scale and zero take (docs/format.md): FP32 and int16 for activations, FP16 and int16
// for KV.
constexpr double kActivationGroupBits = 32 + 16;
constexpr double kKvGroupBits = 16 + 16;

double with_group(int bits, int64_t group, int64_t width, double group_bits) {
  if (bits >= 16) return bits;
  const int64_t columns = group == 0 ? width : std::min(group, width);
  return bits +
         group_bits * static_cast<double>((width + columns - 1) / columns) / static_cast<double>(width);
}

// A mean of bits, weighted by how many values have them.
struct BitMean {
  double bits = 0, values = 0;
  void add(double total_bits, int64_t count) {
    bits += total_bits;
    values += static_cast<double>(count);
  }
  double mean() const { return values == 0 ? 0 : bits / values; }
};

// One weight matrix in the file, whichever kind of file it is.
class ModelFile {
 public:
  virtual ~ModelFile() = default;
  virtual uint64_t bytes_of(const std::string& tensor) const = 0;  // a canonical tensor with its suffix
  virtual std::string type_of(const std::string& tensor) const = 0;
  virtual uint64_t total_bytes() const = 0;
  virtual const QuantizationConfig* quantization() const { return nullptr; }
};

class PlainFile : public ModelFile {
 public:
  explicit PlainFile(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}
  uint64_t bytes_of(const std::string& tensor) const override { return checkpoint_.stored_bytes(tensor); }
  std::string type_of(const std::string& tensor) const override { return checkpoint_.stored_type(tensor); }
  uint64_t total_bytes() const override {
    const ModelConfig& config = checkpoint_.config();
    uint64_t total = 0;
    for (const PlainShape& tensor : plain_tensors_of_model(config)) total += bytes_of(tensor.name);
    for (int64_t layer = 0; layer < config.layers; ++layer) {
      for (const PlainShape& tensor : plain_tensors_of_layer(config, layer)) total += bytes_of(tensor.name);
      for (const LinearShape& linear : linears_of_layer(config, layer))
        total += bytes_of(linear.name + ".weight") + (linear.bias ? bytes_of(linear.name + ".bias") : 0);
    }
    return total;
  }

 private:
  const Checkpoint& checkpoint_;
};

class ArtifactFile : public ModelFile {
 public:
  explicit ArtifactFile(const ArtifactReader& reader) : reader_(reader) {}
  uint64_t bytes_of(const std::string& tensor) const override {
    uint64_t bytes = 0;
    for (const char* part : {"", "_hi", "_scale", "_lo", "_lo_index"})
      if (const TensorInfo* info = reader_.tensors().find(tensor + part))
        bytes += reader_.tensors().raw(*info).size();
    require(bytes > 0, "{}: tensor {} is missing", reader_.path().string(), tensor);
    return bytes;
  }
  std::string type_of(const std::string& tensor) const override {
    const TensorInfo* info = reader_.tensors().find(tensor);
    return info == nullptr ? "nibble planes" : info->type;
  }
  uint64_t total_bytes() const override {
    uint64_t total = 0;
    for (const TensorInfo& tensor : reader_.tensors().tensors())
      total += reader_.tensors().raw(tensor).size();
    return total;
  }
  const QuantizationConfig* quantization() const override { return &reader_.quantization(); }

  /// Share of a linear's blocks that have a low nibble.
  double residual_share(const LinearShape& linear, int64_t block) const {
    const TensorInfo* index = reader_.tensors().find(linear.name + ".weight_lo_index");
    if (index == nullptr) return 0;
    const int64_t blocks =
        ((linear.out + kResidualRows - 1) / kResidualRows) * ((linear.in + block - 1) / block);
    return static_cast<double>(index->elements()) / static_cast<double>(blocks);
  }

 private:
  const ArtifactReader& reader_;
};

Json activation_json(const ActivationPolicy& policy) {
  return {{"bits", policy.bits}, {"group", policy.group}, {"symmetric", policy.symmetric}};
}

Json kv_json(const KvPolicy& policy) {
  return {{"bits", policy.bits},
          {"group", policy.group},
          {"symmetric", policy.symmetric},
          {"key_transform", policy.key_transform.kind},
          {"value_transform", policy.value_transform.kind},
          {"sink_tokens", policy.sink_tokens}};
}

Json report(const fs::path& path, const ModelConfig& config, const ModelFile& file,
            const ArtifactFile* artifact) {
  BitMean weights, activations, kv, all;
  const QuantizationConfig* quantization = file.quantization();
  Json layers = Json::array();
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    uint64_t layer_bytes = 0;
    int64_t parameters = 0;
    for (const PlainShape& tensor : plain_tensors_of_layer(config, layer)) {
      layer_bytes += file.bytes_of(tensor.name);
      int64_t elements = 1;
      for (const int64_t size : tensor.shape) elements *= size;
      parameters += elements;
    }
    Json linears = Json::array();
    for (const LinearShape& linear : linears_of_layer(config, layer)) {
      const int64_t elements = linear.out * linear.in;
      const uint64_t bytes = file.bytes_of(linear.name + ".weight");
      layer_bytes += bytes + (linear.bias ? file.bytes_of(linear.name + ".bias") : 0);
      parameters += elements + (linear.bias ? linear.out : 0);
      weights.add(static_cast<double>(bytes) * 8, elements);
      Json entry = {{"name", linear.name},
                    {"shape", {linear.out, linear.in}},
                    {"type", file.type_of(linear.name + ".weight")},
                    {"bits_per_weight", static_cast<double>(bytes) * 8 / static_cast<double>(elements)}};
      double bits = 16;
      if (quantization != nullptr) {
        const LinearPolicy& policy = quantization->linear(linear.name);
        bits = with_group(policy.activation.bits, policy.activation.group, linear.in, kActivationGroupBits);
        entry["weight_group"] = policy.weight_group;
        entry["residual_share"] = artifact->residual_share(linear, policy.residual_block);
        entry["activation"] = activation_json(policy.activation);
        entry["input_transform"] = policy.input_transform.kind;
      }
      activations.add(bits * static_cast<double>(linear.in), linear.in);
      linears.push_back(std::move(entry));
    }
    Json entry = {{"layer", layer},
                  {"parameters", parameters},
                  {"bytes", layer_bytes},
                  {"linears", std::move(linears)}};
    if (const int64_t window = config.sliding_window[static_cast<size_t>(layer)]; window > 0)
      entry["sliding_window"] = window;
    const KvPolicy kv_policy =
        quantization == nullptr ? KvPolicy{} : quantization->kv_of(static_cast<int>(layer));
    kv.add(with_group(kv_policy.bits, kv_policy.group, config.head_dim, kKvGroupBits) *
               static_cast<double>(config.head_dim),
           config.head_dim);
    entry["kv"] = kv_json(kv_policy);
    layers.push_back(std::move(entry));
  }
  // Stored transforms are part of what the quantised matrices need.
  BitMean transforms{0, weights.values};
  if (quantization != nullptr)
    for (const std::string& name : quantization->transform_tensors())
      transforms.add(static_cast<double>(file.bytes_of(name)) * 8, 0);
  weights.add(transforms.bits, 0);
  all = weights;
  const auto add_matrix = [&](const std::string& name) {
    all.add(static_cast<double>(file.bytes_of(name)) * 8, config.vocabulary * config.hidden);
  };
  add_matrix("model.embed_tokens.weight");
  if (!config.tied_embeddings) add_matrix("lm_head.weight");

  Json json = {{"path", path.string()},
               {"architecture", config.architecture},
               {"parameters", parameter_count(config)},
               {"bytes", file.total_bytes()},
               {"bits_per_weight", all.mean()},
               {"effective_bits",
                {{"weights", weights.mean()},
                 {"transforms", transforms.mean()},
                 {"activations", activations.mean()},
                 {"kv", kv.mean()}}},
               {"config", config.to_json()},
               {"layers", std::move(layers)}};
  json["quantization"] = quantization == nullptr ? Json()
                                                 : Json{{"recipe", quantization->recipe},
                                                        {"embedding_bits", quantization->embedding_bits},
                                                        {"lm_head_bits", quantization->lm_head_bits}};
  return json;
}

std::string bits_text(const Json& bits) {
  return fmt::format("{:.2f}", bits.get<double>());
}

// The linears of a layer in few words: experts of one shape and policy are one line.
std::string linears_text(const Json& linears) {
  std::string text;
  std::string previous;
  int count = 0;
  const auto flush = [&] {
    if (count > 0)
      text += fmt::format("      {}{}\n", previous, count > 1 ? fmt::format("  x {}", count) : "");
    count = 0;
  };
  for (const Json& linear : linears) {
    const auto name = linear["name"].get<std::string>();
    std::string line =
        fmt::format("{:<10} {:>6} x {:<6} {:<14} {:>5} bits/weight", name.substr(name.rfind('.') + 1),
                    linear["shape"][0].get<int64_t>(), linear["shape"][1].get<int64_t>(),
                    linear["type"].get<std::string>(), bits_text(linear["bits_per_weight"]));
    if (linear.contains("activation")) {
      const Json& activation = linear["activation"];
      line +=
          fmt::format(", A{} group {}", activation["bits"].get<int>(), activation["group"].get<int64_t>());
      if (const double share = linear["residual_share"].get<double>(); share > 0)
        line += fmt::format(", residual {:.1f} %", 100 * share);
      if (linear["input_transform"] != "none") line += ", " + linear["input_transform"].get<std::string>();
    }
    const bool expert = name.find(".experts.") != name.npos;
    if (count > 0 && line == previous && expert) {
      ++count;
      continue;
    }
    flush();
    previous = line;
    count = 1;
  }
  flush();
  return text;
}

}  // namespace

Json inspect_model(const fs::path& model) {
  if (is_artifact(model)) {
    const ArtifactReader reader(model);
    const ModelConfig config = artifact_config(reader);
    const ArtifactFile file(reader);
    return report(model, config, file, &file);
  }
  return inspect_checkpoint(*open_checkpoint(model), model.string());
}

Json inspect_checkpoint(const Checkpoint& checkpoint, const std::string& name) {
  return report(name, checkpoint.config(), PlainFile(checkpoint), nullptr);
}

std::string inspect_text(const Json& report) {
  const Json& effective = report["effective_bits"];
  std::string text = fmt::format(
      "{}\n  architecture     {}\n  parameters       {:.3f} M\n  tensor bytes     {:.1f} MB\n"
      "  bits per weight  {} (linears, embedding and head)\n"
      "  effective bits   weights {}{}, activations {}, KV {} (scales and zeros included)\n",
      report["path"].get<std::string>(), report["architecture"].get<std::string>(),
      report["parameters"].get<double>() * 1e-6, report["bytes"].get<double>() * 1e-6,
      bits_text(report["bits_per_weight"]), bits_text(effective["weights"]),
      effective["transforms"] == 0.0
          ? ""
          : fmt::format(" ({} of them transforms)", bits_text(effective["transforms"])),
      bits_text(effective["activations"]), bits_text(effective["kv"]));
  if (!report["quantization"].is_null())
    text += fmt::format("  recipe           {} (embedding {} bits, head {} bits)\n",
                        report["quantization"]["recipe"].get<std::string>(),
                        report["quantization"]["embedding_bits"].get<int>(),
                        report["quantization"]["lm_head_bits"].get<int>());
  // Layers alike are told once.
  std::string previous;
  int64_t first = 0, last = -1;
  const auto flush = [&] {
    if (last < first) return;
    text += first == last ? fmt::format("  layer {}\n{}", first, previous)
                          : fmt::format("  layers {} to {}\n{}", first, last, previous);
  };
  for (const Json& layer : report["layers"]) {
    std::string body = linears_text(layer["linears"]);
    const Json& kv = layer["kv"];
    body += fmt::format("      KV{} group {}{}\n", kv["bits"].get<int>(),
                        kv["group"] == 0 ? std::string("head") : std::to_string(kv["group"].get<int64_t>()),
                        layer.contains("sliding_window")
                            ? fmt::format(", window {}", layer["sliding_window"].get<int64_t>())
                            : "");
    if (body != previous) {
      flush();
      previous = std::move(body);
      first = layer["layer"].get<int64_t>();
    }
    last = layer["layer"].get<int64_t>();
  }
  flush();
  return text;
}

}  // namespace quatrain
