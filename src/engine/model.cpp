#include "engine/model.h"

#include <string>

#include "base/error.h"

namespace quatrain {
namespace {

class Loader {
 public:
  Loader(const WeightSource& source, ThreadPool& pool)
      : source_(source), config_(source.config()), pool_(pool) {}

  Model load() {
    config_.validate(source_.where());
    Model model;
    model.config = config_;
    load_embedding_and_head(model);
    model.final_norm = norm("model.norm.weight", config_.hidden);
    for (int64_t layer = 0; layer < config_.layers; ++layer) {
      model.layers.push_back(load_layer(layer));
      model.layers.back().kv.offset = model.page_bytes;
      model.page_bytes += model.layers.back().kv.bytes();
      model.layers.back().exact_kv.offset = model.exact_page_bytes;
      model.exact_page_bytes += model.layers.back().exact_kv.bytes();
    }
    return model;
  }

 private:
  // A norm's weight with the architecture's offset added.
  std::vector<float> norm(const std::string& name, int64_t size) const {
    std::vector<float> weight = source_.vector(name, size);
    for (float& value : weight) value += config_.norm_offset;
    return weight;
  }

  std::shared_ptr<const ops::DenseMatrix> matrix(const std::string& name, int64_t rows,
                                                 int64_t columns) const {
    source_.expect(name, {rows, columns});
    const auto read = [&](int64_t begin, int64_t end, float* out) {
      source_.read_rows(name, begin, end, out);
    };
    return std::make_shared<ops::DenseMatrix>(rows, columns, read, std::vector<float>{}, pool_);
  }

  void load_embedding_and_head(Model& model) const {
    const std::string embedding = "model.embed_tokens", head = "lm_head";
    const int64_t vocabulary = config_.vocabulary, hidden = config_.hidden;
    const LinearShape head_shape{head, vocabulary, hidden, false};
    std::shared_ptr<const ops::DenseMatrix> shared;
    if (source_.quantized(embedding)) {
      NibblePlanes planes = source_.planes(embedding);
      require(planes.rows == vocabulary && planes.columns == hidden,
              "{}: {} has planes of {} x {}, the config asks for {} x {}", source_.where(), embedding,
              planes.rows, planes.columns, vocabulary, hidden);
      if (source_.tied_planes()) model.head.add_planes(head, source_.policy(head), planes, pool_, &source_);
      // A tied head's planes serve both.
      if (const auto shared_planes = model.head.only_planes())
        model.embedding.emplace(shared_planes);
      else
        model.embedding.emplace(std::move(planes));
    } else {
      shared = matrix(embedding + ".weight", vocabulary, hidden);
      model.embedding.emplace(shared);
    }
    if (model.head.outputs() > 0) return;
    if (config_.tied_embeddings && shared && !source_.quantized(head))
      return model.head.add_dense(head, source_.policy(head), shared);
    model.head = LinearGroup(source_, {&head_shape, 1}, pool_);
  }

  Mlp load_mlp(std::span<const LinearShape> linears) const {
    return {LinearGroup(source_, linears.first(2), pool_),
            LinearGroup(source_, linears.subspan(2, 1), pool_)};
  }

  Layer load_layer(int64_t index) const {
    const std::string prefix = fmt::format("model.layers.{}.", index);
    const std::vector<LinearShape> linears = linears_of_layer(config_, index);
    const std::span<const LinearShape> all(linears);
    Layer layer;
    layer.input_norm = norm(prefix + "input_layernorm.weight", config_.hidden);
    const std::string after_attention = prefix + "post_attention_layernorm.weight";
    if (config_.sandwich_norms) {
      layer.attention_out_norm = norm(after_attention, config_.hidden);
      layer.mlp_norm = norm(prefix + "pre_feedforward_layernorm.weight", config_.hidden);
      layer.mlp_out_norm = norm(prefix + "post_feedforward_layernorm.weight", config_.hidden);
    } else {
      layer.mlp_norm = norm(after_attention, config_.hidden);
    }
    if (config_.qk_norm) {
      layer.query_norm = norm(prefix + "self_attn.q_norm.weight", config_.head_dim);
      layer.key_norm = norm(prefix + "self_attn.k_norm.weight", config_.head_dim);
    }
    layer.qkv = LinearGroup(source_, all.first(3), pool_);
    layer.output = LinearGroup(source_, all.subspan(3, 1), pool_);
    if (config_.is_moe(index))
      layer.router = matrix(prefix + "mlp.gate.weight", config_.moe.experts, config_.hidden);
    for (size_t first = 4; first < all.size(); first += 3)
      layer.experts.push_back(load_mlp(all.subspan(first, 3)));

    const KvPolicy kv = source_.kv(index);
    const std::string site = fmt::format("{}: layer {} KV cache", source_.where(), index);
    require(kv.sink_tokens == 0, "{}: sink_tokens: {} is not 0; ask for unquantised tokens with --kv-sink",
            site, kv.sink_tokens);
    require(kv.value_transform.kind == "none",
            "{}: an online value transform ({}) is not supported; merge it into v_proj and o_proj", site,
            kv.value_transform.kind);
    layer.kv = ops::kv_layout(config_.kv_heads, config_.head_dim, kv.bits, kv.group, kv.symmetric);
    if (kv.bits != 16) layer.exact_kv = ops::kv_layout(config_.kv_heads, config_.head_dim, 16, 0, false);
    layer.key_transform = make_key_transform(kv.key_transform, config_, site, source_);
    layer.window = config_.sliding_window[static_cast<size_t>(index)];
    layer.local_rope = layer.window > 0;
    return layer;
  }

  const WeightSource& source_;
  const ModelConfig& config_;
  ThreadPool& pool_;
};

}  // namespace

EngineCosts Model::costs() const {
  EngineCosts costs;
  costs.weight_bytes = head.bytes() + embedding->row_bytes();
  costs.head_multiplies = head.multiplies();
  const auto add = [&](const LinearGroup& linear) {
    costs.weight_bytes += linear.bytes();
    costs.multiplies += linear.multiplies();
  };
  for (const Layer& layer : layers) {
    add(layer.qkv);
    add(layer.output);
    if (layer.router) {
      costs.weight_bytes += layer.router->bytes();
      costs.multiplies += layer.router->rows() * layer.router->columns();
    }
    const int64_t running = layer.router ? config.moe.experts_per_token : 1;
    for (int64_t e = 0; e < running; ++e) {
      add(layer.experts[static_cast<size_t>(e)].gate_up);
      add(layer.experts[static_cast<size_t>(e)].down);
    }
    if (layer.key_transform) costs.weight_bytes += layer.key_transform->bytes();
    costs.kv_bytes += static_cast<int64_t>(layer.kv.bytes()) / ops::kPageTokens;
  }
  return costs;
}

Model load_model(const WeightSource& source, ThreadPool& pool) {
  return Loader(source, pool).load();
}

}  // namespace quatrain
