#include "engine/weight_source.h"

#include <sys/mman.h>

#include <algorithm>

#include "base/error.h"
#include "model/artifact_config.h"

namespace quatrain {
namespace {

void expect_shape(const std::string& where, const std::string& name, const std::vector<int64_t>& found,
                  const std::vector<int64_t>& wanted) {
  require(found == wanted, "{}: tensor {} has shape [{}], the config asks for [{}]", where, name,
          fmt::join(found, ", "), fmt::join(wanted, ", "));
}

// Lets go of the pages of a mapped range, which need not stay resident beside their copy: a model would take
// twice its size while it loads. Another read (of a neighbour on the first or last page) brings them back.
void release_pages(std::span<const std::byte> bytes) {
  constexpr size_t kPage = 4096;
  const size_t begin = reinterpret_cast<size_t>(bytes.data()) / kPage * kPage;
  const size_t end = (reinterpret_cast<size_t>(bytes.data() + bytes.size()) + kPage - 1) / kPage * kPage;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

class CheckpointSource : public WeightSource {
 public:
  explicit CheckpointSource(std::unique_ptr<Checkpoint> checkpoint) : checkpoint_(std::move(checkpoint)) {}

  std::string where() const override { return checkpoint_->path().string(); }
  const ModelConfig& config() const override { return checkpoint_->config(); }

  void expect(const std::string& name, const std::vector<int64_t>& shape) const override {
    require(checkpoint_->has(name), "{}: tensor {} is missing", where(), name);
    expect_shape(where(), name, checkpoint_->shape(name), shape);
  }

  void read_rows(const std::string& name, int64_t begin, int64_t end, float* out) const override {
    const std::vector<float> values = checkpoint_->read_rows(name, begin, end);
    std::copy(values.begin(), values.end(), out);
  }

  std::vector<float> vector(const std::string& name, int64_t size) const override {
    expect(name, {size});
    return checkpoint_->read(name);
  }

 private:
  std::unique_ptr<Checkpoint> checkpoint_;
};

class ArtifactSource : public WeightSource {
 public:
  explicit ArtifactSource(const fs::path& directory)
      : reader_(directory), config_(artifact_config(reader_)) {}

  std::string where() const override { return reader_.path().string(); }
  const ModelConfig& config() const override { return config_; }

  void expect(const std::string& name, const std::vector<int64_t>& shape) const override {
    const TensorInfo* tensor = reader_.tensors().find(name);
    require(tensor != nullptr, "{}: tensor {} is missing", where(), name);
    expect_shape(where(), name, tensor->shape, shape);
  }

  void read_rows(const std::string& name, int64_t begin, int64_t end, float* out) const override {
    const TensorInfo* tensor = reader_.tensors().find(name);
    require(tensor != nullptr, "{}: tensor {} is missing", where(), name);
    reader_.tensors().read_rows(*tensor, begin,
                                {out, static_cast<size_t>((end - begin) * tensor->columns())});
    const std::span<const std::byte> bytes = reader_.tensors().raw(*tensor);
    if (end == begin) return;
    const size_t row = bytes.size() / static_cast<size_t>(tensor->rows());
    release_pages(bytes.subspan(static_cast<size_t>(begin) * row, static_cast<size_t>(end - begin) * row));
  }

  std::vector<float> vector(const std::string& name, int64_t size) const override {
    expect(name, {size});
    std::vector<float> values(static_cast<size_t>(size));
    read_rows(name, 0, 1, values.data());
    return values;
  }

  bool quantized(const std::string& linear) const override { return reader_.has_planes(linear); }
  NibblePlanes planes(const std::string& linear) const override {
    NibblePlanes planes = reader_.planes(linear);
    for (const char* part : {".weight_hi", ".weight_lo", ".weight_lo_index", ".weight_scale"})
      if (const TensorInfo* tensor = reader_.tensors().find(linear + part))
        release_pages(reader_.tensors().raw(*tensor));
    return planes;
  }

  // The defaults hold for quantised linears; an unquantised one has a policy only when it is named.
  LinearPolicy policy(const std::string& linear) const override {
    const QuantizationConfig& quantization = reader_.quantization();
    const bool named = quantization.linears.contains(linear);
    if (named || quantized(linear) || (linear == "lm_head" && tied_planes()))
      return quantization.linear(linear);
    return {};
  }

  KvPolicy kv(int64_t layer) const override { return reader_.quantization().kv_of(static_cast<int>(layer)); }
  bool tied_planes() const override {
    return reader_.quantization().lm_head_tied && quantized("model.embed_tokens");
  }

 private:
  ArtifactReader reader_;
  ModelConfig config_;
};

}  // namespace

NibblePlanes WeightSource::planes(const std::string& linear) const {
  fail("{}: {} has no nibble planes", where(), linear);
}

std::unique_ptr<WeightSource> checkpoint_source(std::unique_ptr<Checkpoint> checkpoint) {
  return std::make_unique<CheckpointSource>(std::move(checkpoint));
}

std::unique_ptr<WeightSource> artifact_source(const fs::path& directory) {
  return std::make_unique<ArtifactSource>(directory);
}

}  // namespace quatrain
