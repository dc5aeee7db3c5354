#include "model/artifact_config.h"

#include <set>

#include "base/error.h"
#include "checkpoint/element_type.h"
#include "model/tensor_problems.h"

namespace quatrain {
namespace {

constexpr const char* kEmbedding = "model.embed_tokens";
constexpr const char* kHead = "lm_head";

class Check {
 public:
  Check(const ArtifactReader& artifact, const ModelConfig& config)
      : artifact_(artifact),
        config_(config),
        quantization_(artifact.quantization()),
        where_((artifact.path() / "config.json").string()) {}

  void run() {
    check_head();
    check_tensors();
    check_bits(kEmbedding, quantization_.embedding_bits);
    if (!config_.tied_embeddings) check_bits(kHead, quantization_.lm_head_bits);
    for (const auto& [layer, policy] : quantization_.kv_layers)
      require(layer < config_.layers, "{}: quantization_config.kv.layers: the model has no layer {}", where_,
              layer);
    for (int64_t layer = 0; layer < config_.layers; ++layer) check_kv(layer);
  }

 private:
  const TensorInfo* find(const std::string& name) const { return artifact_.tensors().find(name); }

  // Planes of a tied embedding serve the head too; a tied embedding in 16 bits needs no word about them.
  void check_head() const {
    const bool own = find("lm_head.weight") != nullptr || artifact_.has_planes(kHead);
    const bool planes_shared = quantization_.lm_head_tied;
    require(own ? !config_.tied_embeddings && !planes_shared
                : config_.tied_embeddings && (planes_shared || !artifact_.has_planes(kEmbedding)),
            "{}: the artifact has {} lm_head, but tie_word_embeddings is {} and "
            "quantization_config.lm_head.tied is {}",
            where_, own ? "an" : "no", config_.tied_embeddings, planes_shared);
  }

  void expect(const std::string& name, const std::vector<int64_t>& shape) {
    expected_.insert(name);
    const TensorInfo* tensor = find(name);
    if (tensor == nullptr)
      problems_.missing.push_back(name + " " + shape_text(shape));
    else if (tensor->shape != shape)
      problems_.misshapen.push_back(
          fmt::format("{} is {}, not {}", name, shape_text(tensor->shape), shape_text(shape)));
    else if (name.ends_with(".weight") && is_integer_type(tensor->type))
      problems_.mistyped.push_back(fmt::format("{} holds {}, no weights", name, tensor->type));
  }

  // Planes or a plain matrix. The other planes' shapes follow from weight_hi's where they are read.
  void expect_matrix(const std::string& name, int64_t rows, int64_t columns) {
    if (!artifact_.has_planes(name)) return expect(name + ".weight", {rows, columns});
    expect(name + ".weight_hi", {rows, (columns + 1) / 2});
    for (const char* part : {".weight_scale", ".weight_lo", ".weight_lo_index"})
      expected_.insert(name + part);
  }

  void check_tensors() {
    expect_matrix(kEmbedding, config_.vocabulary, config_.hidden);
    if (!config_.tied_embeddings) expect_matrix(kHead, config_.vocabulary, config_.hidden);
    expect("model.norm.weight", {config_.hidden});
    for (int64_t layer = 0; layer < config_.layers; ++layer) {
      for (const LinearShape& linear : linears_of_layer(config_, layer)) {
        expect_matrix(linear.name, linear.out, linear.in);
        if (linear.bias) expect(linear.name + ".bias", {linear.out});
      }
      for (const PlainShape& plain : plain_tensors_of_layer(config_, layer)) expect(plain.name, plain.shape);
    }
    for (const std::string& name : quantization_.transform_tensors()) expected_.insert(name);
    for (const TensorInfo& tensor : artifact_.tensors().tensors())
      if (!expected_.contains(tensor.name))
        problems_.unexpected.push_back(tensor.name + " " + shape_text(tensor.shape));
    problems_.raise(artifact_.path().string());
  }

  // Every block of a matrix of 8 bits has its low nibble, no block of one of 4 bits; between the two lies a
  // residual budget.
  void check_bits(const std::string& name, int bits) const {
    const bool planes = artifact_.has_planes(name);
    const TensorInfo* index = find(name + ".weight_lo_index");
    const int64_t block = quantization_.linear(name).residual_block;
    const int64_t all =
        (config_.vocabulary + kResidualRows - 1) / kResidualRows * ((config_.hidden + block - 1) / block);
    const int64_t present = index == nullptr ? 0 : index->elements();
    const bool agree = bits == 16 ? !planes : planes && (bits == 8 ? present > 0 : present < all);
    require(agree, "{}: quantization_config says {} bits for {}, but {}", where_, bits, name,
            planes ? fmt::format("{} of its {} blocks have a low nibble", present, all)
                   : "its tensor is not quantised");
  }

  void check_kv(int64_t layer) const {
    const KvPolicy& policy = quantization_.kv_of(static_cast<int>(layer));
    require(policy.group == 0 || config_.head_dim % policy.group == 0,
            "{}: quantization_config.kv: a group of {} does not divide the {} columns of a head", where_,
            policy.group, config_.head_dim);
  }

  const ArtifactReader& artifact_;
  const ModelConfig& config_;
  const QuantizationConfig& quantization_;
  std::string where_;
  std::set<std::string> expected_;
  TensorProblems problems_;
};

}  // namespace

ModelConfig artifact_config(const ArtifactReader& artifact) {
  const std::string where = (artifact.path() / "config.json").string();
  ModelConfig config = ModelConfig::from_json(artifact.config(), where);
  config.validate(where);
  Check(artifact, config).run();
  return config;
}

}  // namespace quatrain
