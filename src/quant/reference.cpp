#include "quant/reference.h"

#include <torch/torch.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "base/thread_pool.h"
#include "quant/reference/decoder_layer.h"
#include "quant/reference/device.h"
#include "quant/reference/fake_quantize.h"

namespace quatrain {
namespace {

// Above this many bytes of FP32 layers, each forward pass loads one layer at a time.
constexpr double kResidentBytes = 8e9;
// Rows of logits that exist twice (torch's and ours) at once.
constexpr int64_t kHeadChunk = 256;

class TorchReference : public ReferenceModel {
 public:
  TorchReference(std::unique_ptr<WeightSource> source, std::string where, int threads)
      : source_(std::move(source)), where_(std::move(where)) {
    at::set_num_threads(threads > 0 ? threads : available_cores());
    const c10::InferenceMode inference;
    embedding_ = source_->embedding();
    head_ = source_->head();
    norm_ = source_->plain("model.norm.weight");
    if (4.0 * static_cast<double>(parameter_count(config())) <= kResidentBytes)
      for (int64_t layer = 0; layer < config().layers; ++layer) resident_.emplace_back(*source_, layer);
  }

  const ModelConfig& config() const override { return source_->config(); }

  std::vector<float> logits(std::span<const int32_t> ids) override {
    const c10::InferenceMode inference;
    require(!ids.empty(), "{}: logits of an empty sequence were asked for", where_);
    for (size_t i = 0; i < ids.size(); ++i)
      require(ids[i] >= 0 && ids[i] < config().vocabulary,
              "{}: token id {} at position {} is outside [0, {})", where_, ids[i], i, config().vocabulary);
    torch::Tensor hidden = embedded(embedding_, {ids.begin(), ids.end()}) * config().embedding_scale;
    for (int64_t layer = 0; layer < config().layers; ++layer)
      hidden = resident_.empty() ? DecoderLayer(*source_, layer).forward(hidden)
                                 : resident_[static_cast<size_t>(layer)].forward(hidden);
    hidden = rms_norm(hidden, norm_, config());
    std::vector<float> out(ids.size() * static_cast<size_t>(config().vocabulary));
    for (int64_t begin = 0; begin < hidden.size(0); begin += kHeadChunk) {
      const torch::Tensor rows = hidden.slice(0, begin, std::min(begin + kHeadChunk, hidden.size(0)));
      const torch::Tensor part = in_memory(head_.product(head_.quantize_input(rows)));
      std::memcpy(out.data() + begin * config().vocabulary, part.data_ptr<float>(), part.nbytes());
    }
    settle_checks();
    return out;
  }

 private:
  std::unique_ptr<WeightSource> source_;
  std::string where_;
  torch::Tensor embedding_, norm_;
  ReferenceLinear head_;
  std::vector<DecoderLayer> resident_;
};

}  // namespace

std::unique_ptr<ReferenceModel> ReferenceModel::load(const fs::path& model, int threads,
                                                     const std::string& device) {
  return make_reference(open_weight_source(model, torch_device(device)), model.string(), threads);
}

std::unique_ptr<ReferenceModel> make_reference(std::unique_ptr<WeightSource> source, std::string where,
                                               int threads) {
  return std::make_unique<TorchReference>(std::move(source), std::move(where), threads);
}

}  // namespace quatrain
