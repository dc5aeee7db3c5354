#include "quant/reference/weight_source.h"

#include <cstring>

#include "base/error.h"
#include "model/artifact_config.h"
#include "model/checkpoint.h"
#include "quant/reference/device.h"
#include "quant/reference/fake_quantize.h"
#include "quant/transforms/block.h"

namespace quatrain {
namespace {

constexpr const char* kEmbedding = "model.embed_tokens";
constexpr const char* kHead = "lm_head";

torch::Tensor to_tensor(const std::vector<float>& values, std::vector<int64_t> shape) {
  torch::Tensor tensor = torch::empty(shape, torch::kFloat);
  require(static_cast<size_t>(tensor.numel()) == values.size(), "a tensor of {} values has the wrong shape",
          values.size());
  std::memcpy(tensor.data_ptr<float>(), values.data(), values.size() * sizeof(float));
  return tensor;
}

class CheckpointSource : public WeightSource {
 public:
  explicit CheckpointSource(std::shared_ptr<const Checkpoint> checkpoint)
      : checkpoint_(std::move(checkpoint)) {
    config_ = checkpoint_->config();
  }

  torch::Tensor plain(const std::string& name) const override {
    return to_tensor(checkpoint_->read(name), checkpoint_->shape(name));
  }
  ReferenceLinear linear(const std::string& name) const override {
    return {name, plain(name + ".weight"),
            checkpoint_->has(name + ".bias") ? plain(name + ".bias") : torch::Tensor(), ActivationPolicy{}};
  }
  torch::Tensor embedding() const override { return plain(std::string(kEmbedding) + ".weight"); }
  ReferenceLinear head() const override {
    if (config_.tied_embeddings) return {kHead, embedding(), torch::Tensor(), ActivationPolicy{}};
    return linear(kHead);
  }
  KvPolicy kv(int64_t) const override { return {}; }

 private:
  std::shared_ptr<const Checkpoint> checkpoint_;
};

// The bytes of a tensor in its own type; only types that an artifact holds.
torch::Tensor raw_tensor(const TensorSource& tensors, const std::string& name) {
  const TensorInfo* info = tensors.find(name);
  require(info != nullptr, "{}: tensor {} is missing", tensors.path().string(), name);
  torch::ScalarType type = torch::kFloat;
  if (info->type == "F16")
    type = torch::kHalf;
  else if (info->type == "BF16")
    type = torch::kBFloat16;
  else if (info->type == "U8")
    type = torch::kByte;
  else if (info->type == "I32")
    type = torch::kInt;
  else
    require(info->type == "F32", "{}: tensor {} has the type {}", tensors.path().string(), name, info->type);
  torch::Tensor tensor = torch::empty(info->shape, type);
  const std::span<const std::byte> bytes = tensors.raw(*info);
  require(bytes.size() == tensor.nbytes(), "{}: tensor {} has {} bytes, its shape needs {}",
          tensors.path().string(), name, bytes.size(), tensor.nbytes());
  if (!bytes.empty()) std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

// Nibbles in the order of their columns, the low half of a byte first: uint8 [..., n] to int16 [..., 2 n].
torch::Tensor nibbles(const torch::Tensor& bytes) {
  std::vector<int64_t> shape = bytes.sizes().vec();
  shape.back() *= 2;
  return torch::stack({bytes.bitwise_and(15), bytes.bitwise_right_shift(4)}, -1)
      .reshape(shape)
      .to(torch::kShort);
}

class ArtifactSource : public WeightSource {
 public:
  explicit ArtifactSource(const fs::path& path) : reader_(path) { config_ = artifact_config(reader_); }

  torch::Tensor plain(const std::string& name) const override {
    return raw_tensor(reader_.tensors(), name).to(torch::kFloat);
  }
  ReferenceLinear linear(const std::string& name) const override {
    const LinearPolicy& policy = quantization().linear(name);
    ReferenceLinear linear{name, weight(name), has(name + ".bias") ? plain(name + ".bias") : torch::Tensor(),
                           policy.activation, policy.input_transform};
    const Transform& transform = policy.input_transform;
    if (transform.kind == "block") {
      linear.input_blocks = plain(transform.tensor);
      require(linear.input_blocks.dim() == 3 && linear.input_blocks.size(1) == linear.input_blocks.size(2) &&
                  linear.input_blocks.size(0) * linear.input_blocks.size(1) == linear.weight.size(1),
              "{}: tensor {} does not transform the {} inputs of {}", reader_.path().string(),
              transform.tensor, linear.weight.size(1), name);
    } else {
      linear.input_blocks = constructed_blocks(transform, linear.weight.size(1));
    }
    return linear;
  }
  torch::Tensor embedding() const override { return weight(kEmbedding); }
  ReferenceLinear head() const override {
    const bool tied = config_.tied_embeddings || quantization().lm_head_tied;
    if (!tied) return linear(kHead);
    return {kHead, embedding(), torch::Tensor(), quantization().linear(kHead).activation};
  }
  KvPolicy kv(int64_t layer) const override {
    const KvPolicy& policy = quantization().kv_of(static_cast<int>(layer));
    require(policy.value_transform.kind == "none" && policy.sink_tokens == 0,
            "{}: layer {}: the reference does not know this KV policy", reader_.path().string(), layer);
    return policy;
  }
  KeyTransform key_transform(int64_t layer) const override {
    const Transform& transform = quantization().kv_of(static_cast<int>(layer)).key_transform;
    const int64_t d = config_.head_dim;
    if (transform.kind == "matrix") {
      const torch::Tensor stored = plain(transform.tensor);
      require(stored.sizes() == torch::IntArrayRef({config_.kv_heads, 2 * d + 1, d}),
              "{}: tensor {} does not transform {} KV heads of {}", reader_.path().string(), transform.tensor,
              config_.kv_heads, d);
      return {stored.slice(1, 0, d).contiguous(), stored.slice(1, d, 2 * d).contiguous(),
              stored.select(1, 2 * d).contiguous()};
    }
    return constructed_key_transform(transform, config_);
  }

 private:
  const QuantizationConfig& quantization() const { return reader_.quantization(); }
  bool has(const std::string& name) const { return reader_.tensors().find(name) != nullptr; }
  torch::Tensor weight(const std::string& linear) const {
    if (has(linear + ".weight")) return plain(linear + ".weight");
    return unpack_planes(reader_.tensors(), linear, quantization().linear(linear), columns_of(linear));
  }
  // Columns of a linear: its packed rows may end in half a byte.
  int64_t columns_of(const std::string& linear) const {
    if (linear == kEmbedding || linear == kHead) return config_.hidden;
    if (linear.ends_with("o_proj")) return config_.query_width();
    if (!linear.ends_with("down_proj")) return config_.hidden;
    return linear.find(".experts.") == std::string::npos ? config_.intermediate : config_.moe.intermediate;
  }

  ArtifactReader reader_;
};

}  // namespace

KeyTransform constructed_key_transform(const Transform& transform, const ModelConfig& config) {
  const torch::Tensor blocks = constructed_blocks(transform, config.head_dim);
  if (!blocks.defined()) return {};
  const torch::Tensor every = blocks.expand({config.kv_heads, config.head_dim, config.head_dim}).contiguous();
  return {every, every, torch::zeros({config.kv_heads, config.head_dim})};
}

torch::Tensor unpack_planes(const TensorSource& tensors, const std::string& linear,
                            const LinearPolicy& policy, int64_t columns) {
  const int64_t block = policy.residual_block;
  torch::Tensor codes =
      nibbles(raw_tensor(tensors, linear + ".weight_hi"));  // 0 .. 15, [rows, columns (+ 1)]
  const int64_t rows = codes.size(0);
  require(codes.size(1) - columns == columns % 2, "{}: {} packs {} columns, the model has {}",
          tensors.path().string(), linear, codes.size(1), columns);
  codes = (codes - 16 * (codes >= 8).to(torch::kShort)).slice(1, 0, columns) * 16;
  if (tensors.find(linear + ".weight_lo_index") != nullptr) {
    const torch::Tensor index = raw_tensor(tensors, linear + ".weight_lo_index").to(torch::kLong);
    const torch::Tensor lo = nibbles(raw_tensor(tensors, linear + ".weight_lo")).slice(2, 0, block);
    const int64_t down = (rows + 15) / 16, across = (columns + block - 1) / block;
    torch::Tensor blocks = torch::zeros({down * across, 16, block}, torch::kShort);
    if (index.numel() > 0) blocks.index_copy_(0, index, lo);
    const torch::Tensor plane =
        blocks.reshape({down, across, 16, block}).permute({0, 2, 1, 3}).reshape({down * 16, across * block});
    codes = codes + plane.slice(0, 0, rows).slice(1, 0, columns);
  }
  torch::Tensor scale = raw_tensor(tensors, linear + ".weight_scale").to(torch::kFloat);  // [rows, groups]
  if (policy.weight_group != 0) scale = scale.repeat_interleave(policy.weight_group, 1).slice(1, 0, columns);
  return codes.to(torch::kFloat) * (scale / 16);
}

torch::Tensor ReferenceLinear::quantize_input(const torch::Tensor& x) const {
  return fake_quantize(apply_blocks(x, input_blocks), activation, name);
}

torch::Tensor ReferenceLinear::product(const torch::Tensor& quantized) const {
  if (multiply) return bias.defined() ? multiply(quantized) + bias : multiply(quantized);
  return torch::nn::functional::linear(quantized, weight, bias);
}

std::unique_ptr<WeightSource> open_weight_source(const fs::path& model, torch::Device device) {
  if (is_artifact(model)) return on_device(std::make_unique<ArtifactSource>(model), device);
  return checkpoint_weight_source(open_checkpoint(model), device);
}

std::unique_ptr<WeightSource> checkpoint_weight_source(std::shared_ptr<const Checkpoint> checkpoint,
                                                       torch::Device device) {
  return on_device(std::make_unique<CheckpointSource>(std::move(checkpoint)), device);
}

}  // namespace quatrain
