#include "quant/reference/device.h"

#include <charconv>

#include "base/error.h"

namespace quatrain {
namespace {

torch::Tensor moved_to(torch::Device device, const torch::Tensor& x) {
  return x.defined() ? x.to(device) : x;
}

class DeviceSource : public WeightSource {
 public:
  DeviceSource(std::unique_ptr<WeightSource> source, torch::Device device)
      : source_(std::move(source)), device_(device) {
    config_ = source_->config();
  }

  torch::Tensor plain(const std::string& name) const override {
    return moved_to(device_, source_->plain(name));
  }
  ReferenceLinear linear(const std::string& name) const override { return moved(source_->linear(name)); }
  torch::Tensor embedding() const override { return moved_to(device_, source_->embedding()); }
  ReferenceLinear head() const override { return moved(source_->head()); }
  KvPolicy kv(int64_t layer) const override { return source_->kv(layer); }
  KeyTransform key_transform(int64_t layer) const override {
    return on_device(source_->key_transform(layer), device_);
  }

 private:
  ReferenceLinear moved(ReferenceLinear linear) const {
    for (torch::Tensor* tensor : {&linear.weight, &linear.bias, &linear.input_blocks})
      *tensor = moved_to(device_, *tensor);
    return linear;
  }

  std::unique_ptr<WeightSource> source_;
  torch::Device device_;
};

}  // namespace

torch::Device torch_device(const std::string& name) {
  if (name == "cpu") return torch::kCPU;
  int64_t index = 0;
  if (name != "cuda") {
    const char* end = name.data() + name.size();
    const auto [next, error] = name.starts_with("cuda:")
                                   ? std::from_chars(name.data() + 5, end, index)
                                   : std::from_chars_result{name.data(), std::errc::invalid_argument};
    require(error == std::errc() && next == end && index >= 0 && index < 128,
            "--device {}: neither cpu nor cuda nor cuda:N", name);
  }
  const auto count = torch::cuda::is_available() ? static_cast<int64_t>(torch::cuda::device_count()) : 0;
  require(count > 0,
          "--device {}: this program's libtorch (" TORCH_VERSION
          ") sees no GPU: it was built without CUDA, or there is no GPU or driver; use --device cpu",
          name);
  require(index < count, "--device {}: there are {} GPUs, numbered from 0", name, count);
  return {torch::kCUDA, static_cast<c10::DeviceIndex>(index)};
}

std::unique_ptr<WeightSource> on_device(std::unique_ptr<WeightSource> source, torch::Device device) {
  if (device.is_cpu()) return source;
  return std::make_unique<DeviceSource>(std::move(source), device);
}

KeyTransform on_device(const KeyTransform& transform, torch::Device device) {
  return {moved_to(device, transform.key), moved_to(device, transform.query),
          moved_to(device, transform.mean)};
}

torch::Tensor embedded(const torch::Tensor& embedding, const std::vector<int32_t>& ids) {
  return embedding.index_select(0, torch::tensor(ids, torch::kInt).to(torch::kLong).to(embedding.device()));
}

}  // namespace quatrain
