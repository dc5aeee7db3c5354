#include "formats/export.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "checkpoint/element_type.h"
#include "model/convert.h"
#include "model/text_files.h"

namespace quatrain {
namespace {

constexpr uint64_t kShardBytes = uint64_t{4} << 30;

// "model.layers.0.mlp.experts.3.gate_proj.weight" -> "model.layers.0.mlp.experts.gate+up"
std::string fused_name(const std::string& name) {
  const size_t end = name.rfind('.'), dot = name.rfind('.', end - 1);
  std::string prefix = name.substr(0, dot), last = name.substr(dot + 1, end - dot - 1);
  if (const size_t experts = prefix.find(".experts."); experts != prefix.npos) prefix.resize(experts + 8);
  if (last == "q_proj" || last == "k_proj" || last == "v_proj") last = "q+k+v";
  if (last == "gate_proj" || last == "up_proj" || last == "w1" || last == "w3") last = "gate+up";
  return prefix + "." + last;
}

bool is_linear(const StoredTensor& tensor) {
  return tensor.shape.size() == 2 && !tensor.plain && tensor.name != "lm_head.weight" &&
         tensor.name != "model.embed_tokens.weight";
}

WeightScheme scheme_of(const Checkpoint& model, const StoredTensor& tensor) {
  WeightScheme all;
  for (const std::string& part : tensor.parts) {
    const auto codes = model.read_codes(part, 0, std::min<int64_t>(1, model.shape(part).front()));
    const WeightScheme own =
        codes
            ? WeightScheme{codes->bits, codes->group,
                           model.activation(part.substr(0, part.size() - std::string_view(".weight").size()))}
            : WeightScheme{};
    if (&part == &tensor.parts.front()) all = own;
    if (own.bits == 16 || all.bits == 16 || own.group != all.group || own.activation != all.activation)
      return {};
    all.bits = std::max(all.bits, own.bits);
  }
  return all;
}

}  // namespace

std::vector<WeightScheme> plan_schemes(const Checkpoint& model, const std::vector<StoredTensor>& layout) {
  std::vector<WeightScheme> schemes(layout.size());
  std::map<std::string, std::vector<size_t>> fused;
  size_t packed = 0, linears = 0, changed = 0;
  for (size_t i = 0; i < layout.size(); ++i) {
    if (!is_linear(layout[i])) continue;
    schemes[i] = scheme_of(model, layout[i]);
    fused[fused_name(layout[i].name)].push_back(i);
  }
  for (const auto& [name, members] : fused) {
    WeightScheme all = schemes[members.front()];
    for (const size_t i : members) {
      if (schemes[i].bits == 16 || schemes[i].group != all.group || schemes[i].activation != all.activation)
        all = WeightScheme{};
      if (all.bits == 16) break;
      all.bits = std::max(all.bits, schemes[i].bits);
    }
    for (const size_t i : members) {
      changed += schemes[i] == all ? 0 : 1;
      schemes[i] = all;
      packed += all.bits < 16 ? 1 : 0;
      ++linears;
    }
  }
  require(packed > 0,
          "{}: has no integer weights to export; quantise the model first, or convert to safetensors",
          model.path().string());
  if (changed > 0)
    log_warn("{} matrices take the width of those that readers fuse with them (q, k, v; gate, up)", changed);
  log_info("{} of {} linear layers are packed", packed, linears);
  return schemes;
}

void write_packed_hub(
    const Checkpoint& model, const fs::path& output, const std::string& dtype,
    const std::vector<StoredTensor>& layout, const std::vector<WeightScheme>& schemes,
    const Json& quantization_config,
    const std::function<void(SafetensorsWriter&, const std::string& name, StoredCodes)>& write_packed,
    const std::function<void(const fs::path&)>& write_more) {
  const std::string type = stored_type_of(dtype.empty() ? "f16" : dtype);
  if (type[0] == 'Q') fail_usage("--dtype {}: tensors that are not packed are f32, f16 or bf16", dtype);
  ModelConfig config = model.config();
  config.dtype = type == "F32" ? "float32" : type == "F16" ? "float16" : "bfloat16";
  AtomicDirectory directory(output);
  directory.clear();
  SafetensorsWriter writer(directory.path(), kShardBytes);
  Progress progress("tensors", std::ssize(layout));
  for (size_t i = 0; i < layout.size(); ++i) {
    const StoredTensor& tensor = layout[i];
    if (schemes[i].bits < 16) {
      auto codes = tensor_codes(model, tensor);
      require(codes.has_value(), "{}: {} lost its integers", model.path().string(), tensor.name);
      codes->bits = schemes[i].bits;  // a 4-bit code is an 8-bit one of the same scale
      write_packed(writer, tensor.name.substr(0, tensor.name.size() - std::string_view(".weight").size()),
                   std::move(*codes));
    } else {
      writer.begin(tensor.name, type, tensor.shape);
      stream_tensor(model, tensor, 0, [&](std::span<const float> rows) {
        writer.write(encode_values(*find_element_type(type), rows, fmt::format("tensor {}", tensor.name)));
      });
    }
    progress.update(static_cast<int64_t>(i + 1));
  }
  writer.finish();
  Json json = config.to_json();
  json["quantization_config"] = quantization_config;
  write_file(directory.path() / "config.json", json.dump(2) + "\n");
  write_text_files(model.path(), config, directory.path());
  if (write_more) write_more(directory.path());
  directory.commit();
}

}  // namespace quatrain
