#include "quant/transforms/merged_source.h"

#include <algorithm>

#include "base/error.h"

namespace quatrain {
namespace {

constexpr int64_t kRowsAtOnce = 4096;
constexpr const char* kFinalNorm = "model.norm.weight";

class MergedSource : public WeightSource {
 public:
  MergedSource(std::unique_ptr<WeightSource> source, torch::Tensor rotation)
      : source_(std::move(source)), rotation_(std::move(rotation)) {
    config_ = source_->config();
    require(!config_.sandwich_norms,
            "{}: norms after attention and MLP do not commute with a rotation of the residual stream; "
            "use transform.residual = \"none\"",
            config_.architecture);
    config_.tied_embeddings = false;
    config_.norm_offset = 0;
  }

  torch::Tensor plain(const std::string& name) const override {
    if (is_folded_norm(name)) return torch::ones_like(source_->plain(name));
    const torch::Tensor value = source_->plain(name);
    if (name.ends_with("mlp.gate.weight"))
      return single(into_input(value, prefix_of(name) + "post_attention_layernorm"));
    return value + source_->config().norm_offset;  // q_norm, k_norm
  }

  torch::Tensor embedding() const override { return rotated_rows(source_->embedding(), {}); }

  ReferenceLinear head() const override {
    ReferenceLinear linear = source_->head();
    linear.weight = single(into_input(linear.weight, "model.norm"));
    return linear;
  }

  ReferenceLinear linear(const std::string& name) const override {
    ReferenceLinear linear = source_->linear(name);
    const std::string prefix = prefix_of(name);
    torch::Tensor weight, bias = linear.bias.defined() ? wide(linear.bias).unsqueeze(0) : torch::Tensor();
    if (name.ends_with("o_proj") || name.ends_with("down_proj")) {  // into the residual stream
      weight = wide(linear.weight);
      weight = rotated(weight.t()).t();
      if (bias.defined()) bias = rotated(bias);
    } else {
      const bool mlp = name.ends_with("gate_proj") || name.ends_with("up_proj");
      weight = into_input(linear.weight, prefix + (mlp ? "post_attention_layernorm" : "input_layernorm"));
    }
    linear.weight = single(weight);
    if (bias.defined()) linear.bias = single(bias.squeeze(0));
    return linear;
  }

  KvPolicy kv(int64_t layer) const override { return source_->kv(layer); }

 private:
  static bool is_folded_norm(const std::string& name) {
    return name == kFinalNorm || name.ends_with("input_layernorm.weight") ||
           name.ends_with("post_attention_layernorm.weight");
  }
  // "model.layers.3." of a name inside layer 3.
  static std::string prefix_of(const std::string& name) {
    const size_t number = std::string("model.layers.").size();
    return name.substr(0, name.find('.', number) + 1);
  }

  static torch::Tensor wide(const torch::Tensor& x) { return x.to(torch::kDouble); }
  static torch::Tensor single(const torch::Tensor& x) { return x.to(torch::kFloat).contiguous(); }

  torch::Tensor rotated(const torch::Tensor& x) const {
    return rotation_.defined() ? x.matmul(rotation_) : x;
  }
  // y = (x g) W^T = (x Q) (W diag(g) Q)^T for an orthogonal Q and the gain g of `norm`.
  torch::Tensor into_input(const torch::Tensor& weight, const std::string& norm) const {
    return rotated_rows(weight, wide(source_->plain(norm + ".weight")) + source_->config().norm_offset);
  }
  // FP32 [rows, hidden] of `weight` with its columns scaled by `gain` and rotated, a few rows at a time: FP64
  // copies of an embedding would be the largest thing in memory.
  torch::Tensor rotated_rows(const torch::Tensor& weight, const torch::Tensor& gain) const {
    torch::Tensor out = torch::empty(weight.sizes(), weight.options());
    for (int64_t begin = 0; begin < weight.size(0); begin += kRowsAtOnce) {
      const int64_t end = std::min(begin + kRowsAtOnce, weight.size(0));
      const torch::Tensor rows = wide(weight.slice(0, begin, end));
      out.slice(0, begin, end).copy_(rotated(gain.defined() ? rows * gain : rows));
    }
    return out;
  }

  std::unique_ptr<WeightSource> source_;
  torch::Tensor rotation_;
};

}  // namespace

std::unique_ptr<WeightSource> merge_rotation(std::unique_ptr<WeightSource> source, torch::Tensor rotation) {
  return std::make_unique<MergedSource>(std::move(source), std::move(rotation));
}

}  // namespace quatrain
