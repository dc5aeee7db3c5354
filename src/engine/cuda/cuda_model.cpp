#include "engine/cuda/cuda_model.h"

#include <bit>
#include <cmath>

#include "base/error.h"
#include "engine/transform.h"

namespace quatrain {
namespace {

using ops::DeviceBuffer;

class Loader {
 public:
  Loader(const WeightSource& source, CudaScratch& scratch)
      : source_(source), config_(source.config()), scratch_(scratch) {}

  CudaModel load() {
    config_.validate(source_.where());
    require(config_.head_dim % 2 == 0 && config_.head_dim <= 256,
            "{}: heads of {} columns; the GPU takes even ones of up to 256: use --device cpu",
            source_.where(), config_.head_dim);
    CudaModel model;
    model.config = config_;
    load_embedding_and_head(model);
    for (int64_t layer = 0; layer < config_.layers; ++layer) {
      model.layers.push_back(load_layer(layer));
      model.layers.back().kv.offset = model.page_bytes;
      model.page_bytes += model.layers.back().kv.bytes();
    }
    for (CudaLayer& layer : model.layers) layer.kv.page_bytes = model.page_bytes;
    return model;
  }

 private:
  // A norm's weight with the architecture's offset added.
  std::vector<float> norm(const std::string& name, int64_t size) const {
    std::vector<float> weight = source_.vector(name, size);
    for (float& value : weight) value += config_.norm_offset;
    return weight;
  }
  DeviceBuffer<float> device_norm(const std::string& name, int64_t size) const {
    const std::vector<float> weight = norm(name, size);
    return {weight.data(), weight.size()};
  }

  ops::DenseDeviceMatrix matrix(const std::string& name, int64_t rows, int64_t columns) const {
    source_.expect(name, {rows, columns});
    const auto read = [&](int64_t begin, int64_t end, float* out) {
      source_.read_rows(name, begin, end, out);
    };
    return {rows, columns, read, {}, scratch_.threads()};
  }

  void load_embedding_and_head(CudaModel& model) const {
    const std::string embedding = "model.embed_tokens", head = "lm_head";
    const int64_t vocabulary = config_.vocabulary, hidden = config_.hidden;
    const LinearShape head_shape{head, vocabulary, hidden, false};
    const std::vector<float> gain = norm("model.norm.weight", hidden);
    const bool quantized = source_.quantized(embedding);
    if (quantized) {
      const NibblePlanes planes = source_.planes(embedding);
      require(planes.rows == vocabulary && planes.columns == hidden,
              "{}: {} has planes of {} x {}, the config asks for {} x {}", source_.where(), embedding,
              planes.rows, planes.columns, vocabulary, hidden);
      model.embedding = ops::DeviceEmbedding(planes);
      if (source_.tied_planes()) {
        LinearPart part;
        part.name = head;
        part.policy = source_.policy(head);
        part.rows = vocabulary;
        part.columns = hidden;
        part.planes = planes;
        model.head.add(std::move(part), gain, source_, scratch_);
        return;
      }
    }
    if (!quantized && config_.tied_embeddings && !source_.quantized(head)) {
      LinearPart part;
      part.name = head;
      part.policy = source_.policy(head);
      part.rows = vocabulary;
      part.columns = hidden;
      source_.expect(embedding + ".weight", {vocabulary, hidden});
      part.read = [&](int64_t begin, int64_t end, float* out) {
        source_.read_rows(embedding + ".weight", begin, end, out);
      };
      model.head.add(std::move(part), gain, source_, scratch_);
      const ops::DenseDeviceMatrix& shared = *model.head.dense();
      model.embedding = ops::DeviceEmbedding(shared.data(), shared.bf16(), vocabulary, hidden);
      return;
    }
    if (!quantized) {
      model.embedding_matrix = matrix(embedding + ".weight", vocabulary, hidden);
      model.embedding = ops::DeviceEmbedding(model.embedding_matrix->data(), model.embedding_matrix->bf16(),
                                             vocabulary, hidden);
    }
    model.head = CudaLinear(source_, {&head_shape, 1}, gain, scratch_);
  }

  CudaLayer load_layer(int64_t index) const {
    const std::string prefix = fmt::format("model.layers.{}.", index);
    const std::vector<LinearShape> linears = linears_of_layer(config_, index);
    const std::span<const LinearShape> all(linears);
    CudaLayer layer;
    const std::vector<float> input_norm = norm(prefix + "input_layernorm.weight", config_.hidden);
    const std::string after_attention = prefix + "post_attention_layernorm.weight";
    std::vector<float> mlp_norm;
    if (config_.sandwich_norms) {
      layer.attention_out_norm = device_norm(after_attention, config_.hidden);
      mlp_norm = norm(prefix + "pre_feedforward_layernorm.weight", config_.hidden);
      layer.mlp_out_norm = device_norm(prefix + "post_feedforward_layernorm.weight", config_.hidden);
    } else {
      mlp_norm = norm(after_attention, config_.hidden);
    }
    if (config_.qk_norm) {
      layer.query_norm = device_norm(prefix + "self_attn.q_norm.weight", config_.head_dim);
      layer.key_norm = device_norm(prefix + "self_attn.k_norm.weight", config_.head_dim);
    }
    layer.qkv = CudaLinear(source_, all.first(3), input_norm, scratch_);
    layer.output = CudaLinear(source_, all.subspan(3, 1), {}, scratch_);
    if (config_.is_moe(index)) {
      layer.router = matrix(prefix + "mlp.gate.weight", config_.moe.experts, config_.hidden);
      layer.mlp_norm = DeviceBuffer<float>(mlp_norm.data(), mlp_norm.size());
      mlp_norm.clear();  // the experts' inputs come normed
      scratch_.plan_rows(config_.hidden);
    }
    for (size_t first = 4; first < all.size(); first += 3)
      layer.experts.push_back({CudaLinear(source_, all.subspan(first, 2), mlp_norm, scratch_),
                               CudaLinear(source_, all.subspan(first + 2, 1), {}, scratch_)});
    load_kv(layer, index);
    layer.window = config_.sliding_window[static_cast<size_t>(index)];
    return layer;
  }

  void load_kv(CudaLayer& layer, int64_t index) const {
    const KvPolicy kv = source_.kv(index);
    const std::string site = fmt::format("{}: layer {} KV cache", source_.where(), index);
    require(kv.sink_tokens == 0, "{}: unquantised sink tokens ({}) are not supported", site, kv.sink_tokens);
    require(kv.value_transform.kind == "none",
            "{}: an online value transform ({}) is not supported; merge it into v_proj and o_proj", site,
            kv.value_transform.kind);
    require(kv.bits == 4 || kv.bits == 8 || kv.bits == 16, "{}: {} bits; it takes 4, 8 or 16", site, kv.bits);
    require(kv.group >= 0 && kv.group % 2 == 0, "{}: groups of {} columns; the GPU takes even ones", site,
            kv.group);
    layer.kv.kv_heads = static_cast<int>(config_.kv_heads);
    layer.kv.head_dim = static_cast<int>(config_.head_dim);
    layer.kv.bits = kv.bits;
    layer.kv.group = static_cast<int>(kv.group);
    layer.kv.symmetric = kv.symmetric;

    const Transform& transform = kv.key_transform;
    check_key_transform(transform, config_.head_dim, site);
    if (transform.kind == "matrix") {
      const BlockMatrices blocks = load_key_matrices(transform, config_, site, source_);
      layer.key_matrices.emplace(blocks.order, blocks.values, blocks.matrix_of_block, blocks.offset);
    } else if (transform.kind == "hadamard") {
      ops::DeviceHadamard hadamard(config_.head_dim, transform.order, transform.seed, false,
                                   config_.heads + config_.kv_heads);
      if (!hadamard.power_of_two()) {
        layer.key_hadamard = std::move(hadamard);
        return;
      }
      std::vector<float> signs = hadamard.signs();
      for (float& sign : signs) sign /= std::sqrt(static_cast<float>(config_.head_dim));
      layer.key_signs = DeviceBuffer<float>(signs.data(), signs.size());
    }
  }

  const WeightSource& source_;
  const ModelConfig& config_;
  CudaScratch& scratch_;
};

}  // namespace

int64_t CudaModel::bytes_per_token() const {
  int64_t bytes = head.bytes() + embedding.row_bytes();
  for (const CudaLayer& layer : layers) {
    bytes += layer.qkv.bytes() + layer.output.bytes() + (layer.router ? layer.router->bytes() : 0);
    const int64_t running = layer.router ? config.moe.experts_per_token : 1;
    for (int64_t e = 0; e < running; ++e)
      bytes += layer.experts[static_cast<size_t>(e)].gate_up.bytes() +
               layer.experts[static_cast<size_t>(e)].down.bytes();
  }
  return bytes;
}

std::vector<std::string> CudaModel::slow_linears() const {
  std::vector<std::string> names = head.slow_parts();
  const auto add = [&](const CudaLinear& linear) {
    names.insert(names.end(), linear.slow_parts().begin(), linear.slow_parts().end());
  };
  for (const CudaLayer& layer : layers) {
    add(layer.qkv);
    add(layer.output);
    for (const CudaMlp& mlp : layer.experts) {
      add(mlp.gate_up);
      add(mlp.down);
    }
  }
  return names;
}

CudaModel load_cuda_model(const WeightSource& source, CudaScratch& scratch) {
  return Loader(source, scratch).load();
}

}  // namespace quatrain
