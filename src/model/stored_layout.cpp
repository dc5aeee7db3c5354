#include "model/stored_layout.h"

#include "base/error.h"
#include "model/architecture.h"

namespace quatrain {
namespace {

std::string after_last_dot(const std::string& name) {
  return name.substr(name.rfind('.') + 1);
}

StoredTensor of_plain(const PlainShape& tensor, std::string name) {
  return {.name = std::move(name),
          .shape = tensor.shape,
          .parts = {tensor.name},
          .norm = tensor.shape.size() == 1,
          .plain = tensor.shape.size() == 1 || tensor.name.ends_with("mlp.gate.weight")};
}

// Weight, and bias where there is one, of linears with one input, stacked under `name`.
void add_linears(std::vector<StoredTensor>& out, const std::string& name,
                 const std::vector<LinearShape>& linears, bool paired = false) {
  StoredTensor weight{
      .name = name + ".weight", .shape = {0, linears.front().in}, .parts = {}, .paired = paired};
  StoredTensor bias{.name = name + ".bias", .shape = {0}, .parts = {}, .paired = paired, .plain = true};
  for (const LinearShape& linear : linears) {
    weight.shape[0] += linear.out;
    weight.parts.push_back(linear.name + ".weight");
    if (!linear.bias) continue;
    bias.shape[0] += linear.out;
    bias.parts.push_back(linear.name + ".bias");
  }
  out.push_back(std::move(weight));
  if (!bias.parts.empty()) out.push_back(std::move(bias));
}

std::string mixtral_name(std::string name) {
  const auto replace = [&](std::string_view from, std::string_view to) {
    if (const size_t at = name.find(from); at != name.npos) name.replace(at, from.size(), to);
  };
  replace(".mlp.", ".block_sparse_moe.");
  replace(".gate_proj", ".w1");
  replace(".down_proj", ".w2");
  replace(".up_proj", ".w3");
  return name;
}

std::string gguf_plain_name(const std::string& block, const std::string& name, bool sandwich) {
  const std::string stem = after_last_dot(name.substr(0, name.size() - std::string_view(".weight").size()));
  if (stem == "input_layernorm") return block + "attn_norm.weight";
  if (stem == "post_attention_layernorm")
    return block + (sandwich ? "post_attention_norm.weight" : "ffn_norm.weight");
  if (stem == "pre_feedforward_layernorm") return block + "ffn_norm.weight";
  if (stem == "post_feedforward_layernorm") return block + "post_ffw_norm.weight";
  if (stem == "q_norm" || stem == "k_norm") return fmt::format("{}attn_{}.weight", block, stem);
  require(stem == "gate", "{}: GGUF has no name for this tensor", name);
  return block + "ffn_gate_inp.weight";
}

}  // namespace

int64_t StoredTensor::elements() const {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

std::vector<StoredTensor> hub_layout(const ModelConfig& config) {
  const Architecture& row = architecture_of(config);
  const bool mixtral = row.name == "mixtral";
  std::vector<StoredTensor> out;
  const std::vector<PlainShape> model = plain_tensors_of_model(config);
  out.push_back(of_plain(model[0], model[0].name));
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    for (const PlainShape& tensor : plain_tensors_of_layer(config, layer))
      out.push_back(of_plain(tensor, mixtral ? mixtral_name(tensor.name) : tensor.name));
    const std::vector<LinearShape> linears = linears_of_layer(config, layer);
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    if (row.fused_projections) {
      add_linears(out, prefix + "self_attn.qkv_proj", {linears[0], linears[1], linears[2]});
      add_linears(out, linears[3].name, {linears[3]});
      add_linears(out, prefix + "mlp.gate_up_proj", {linears[4], linears[5]});
      add_linears(out, linears[6].name, {linears[6]});
    } else {
      for (const LinearShape& linear : linears)
        add_linears(out, mixtral ? mixtral_name(linear.name) : linear.name, {linear});
    }
  }
  for (size_t i = 1; i < model.size(); ++i) out.push_back(of_plain(model[i], model[i].name));
  return out;
}

std::vector<StoredTensor> gguf_layout(const ModelConfig& config) {
  const Architecture& row = architecture_of(config);
  const bool paired = row.gguf == "llama";
  std::vector<StoredTensor> out;
  const std::vector<PlainShape> model = plain_tensors_of_model(config);
  constexpr std::string_view kNames[] = {"token_embd.weight", "output_norm.weight", "output.weight"};
  for (size_t i = 0; i < model.size(); ++i) out.push_back(of_plain(model[i], std::string(kNames[i])));
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string block = fmt::format("blk.{}.", layer);
    for (const PlainShape& tensor : plain_tensors_of_layer(config, layer))
      out.push_back(of_plain(tensor, gguf_plain_name(block, tensor.name, config.sandwich_norms)));
    const std::vector<LinearShape> linears = linears_of_layer(config, layer);
    if (row.fused_projections) {
      add_linears(out, block + "attn_qkv", {linears[0], linears[1], linears[2]});
    } else {
      add_linears(out, block + "attn_q", {linears[0]}, paired);
      add_linears(out, block + "attn_k", {linears[1]}, paired);
      add_linears(out, block + "attn_v", {linears[2]});
    }
    add_linears(out, block + "attn_output", {linears[3]});
    if (config.is_moe(layer)) {
      for (size_t which = 0; which < 3; ++which) {
        constexpr std::string_view kExperts[] = {"ffn_gate_exps.weight", "ffn_up_exps.weight",
                                                 "ffn_down_exps.weight"};
        StoredTensor stacked{.name = block + std::string(kExperts[which]),
                             .shape = {config.moe.experts, linears[4 + which].out, linears[4 + which].in},
                             .parts = {}};
        for (size_t i = 4 + which; i < linears.size(); i += 3)
          stacked.parts.push_back(linears[i].name + ".weight");
        out.push_back(std::move(stacked));
      }
    } else if (row.fused_projections) {
      add_linears(out, block + "ffn_up", {linears[4], linears[5]});
      add_linears(out, block + "ffn_down", {linears[6]});
    } else {
      add_linears(out, block + "ffn_gate", {linears[4]});
      add_linears(out, block + "ffn_up", {linears[5]});
      add_linears(out, block + "ffn_down", {linears[6]});
    }
  }
  return out;
}

}  // namespace quatrain
