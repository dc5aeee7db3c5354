#include "naive_forward.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/half.h"

namespace quatrain {
namespace {

using Row = std::vector<double>;

class Naive {
 public:
  Naive(const MemoryCheckpoint& weights, const QuantizationConfig& quantization)
      : weights_(weights), quantization_(quantization), config_(weights.config()) {}

  std::vector<double> logits(const std::vector<int32_t>& ids) const {
    std::vector<Row> hidden;
    const auto& embedding = weights_.tensors().at("model.embed_tokens.weight").values;
    for (const int32_t id : ids) {
      Row row;
      for (int64_t i = 0; i < config_.hidden; ++i)
        row.push_back(embedding[static_cast<size_t>(id * config_.hidden + i)] * config_.embedding_scale);
      hidden.push_back(row);
    }
    for (int64_t layer = 0; layer < config_.layers; ++layer) run_layer(layer, hidden);
    std::vector<double> out;
    for (const Row& row : hidden) {
      const Row normed = norm(row, "model.norm.weight");
      const Row logits = config_.tied_embeddings
                             ? product("model.embed_tokens", quantized(normed, policy("lm_head")))
                             : linear("lm_head", normed);
      out.insert(out.end(), logits.begin(), logits.end());
    }
    return out;
  }

 private:
  LinearPolicy policy(const std::string& name) const {
    if (name == "lm_head" && quantization_.lm_head_bits == 16) return {};
    return quantization_.linear(name);
  }

  static Row fake(const Row& x, int64_t group, int bits, bool symmetric, bool half_scale) {
    if (bits == 16) return x;
    Row out(x.size());
    const auto width = static_cast<int64_t>(x.size());
    const int64_t wide = group == 0 ? width : group;
    for (int64_t begin = 0; begin < width; begin += wide) {
      const int64_t count = std::min(wide, width - begin);
      std::vector<float> values(x.begin() + begin, x.begin() + begin + count);
      QuantizedGroup g = quantize_group(values.data(), count, bits, symmetric, wide);
      if (half_scale) {
        g.scale = fp16_to_float(float_to_fp16(g.scale));
        const float low = *std::min_element(values.begin(), values.end());
        if (!symmetric) g.zero = static_cast<int32_t>(std::rint(-low / g.scale));
      }
      for (int64_t i = 0; i < count; ++i)
        out[static_cast<size_t>(begin + i)] =
            g.scale * static_cast<float>(quantize_value(values[static_cast<size_t>(i)], g, bits) - g.zero);
    }
    return out;
  }

  static Row quantized(const Row& x, const LinearPolicy& policy) {
    return fake(x, policy.activation.group, policy.activation.bits, policy.activation.symmetric, false);
  }

  Row product(const std::string& name, const Row& x) const {
    const auto& weight = weights_.tensors().at(name + ".weight");
    Row y(static_cast<size_t>(weight.shape[0]), 0.0);
    for (size_t o = 0; o < y.size(); ++o)
      for (size_t k = 0; k < x.size(); ++k) y[o] += weight.values[o * x.size() + k] * x[k];
    if (const auto bias = weights_.tensors().find(name + ".bias"); bias != weights_.tensors().end())
      for (size_t o = 0; o < y.size(); ++o) y[o] += bias->second.values[o];
    return y;
  }

  Row linear(const std::string& name, const Row& x) const {
    return product(name, quantized(x, policy(name)));
  }

  Row norm(const Row& x, const std::string& name) const {
    const auto& weight = weights_.tensors().at(name).values;
    double squares = 0;
    for (const double value : x) squares += value * value;
    const double factor = 1 / std::sqrt(squares / static_cast<double>(x.size()) + config_.norm_epsilon);
    Row y(x.size());
    for (size_t i = 0; i < x.size(); ++i)
      y[i] = x[i] * factor * (static_cast<double>(weight[i]) + config_.norm_offset);
    return y;
  }

  // One head of q or k: its norm and its rotation.
  Row head_of(const Row& all, int64_t head, const std::string& norm_name, const RopeConfig& rope,
              int64_t position) const {
    Row x(all.begin() + head * config_.head_dim, all.begin() + (head + 1) * config_.head_dim);
    if (config_.qk_norm) x = norm(x, norm_name);
    const std::vector<float> frequencies = rope.inverse_frequencies(config_.head_dim);
    const size_t half = frequencies.size();
    for (size_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position) * frequencies[i], a = x[i], b = x[i + half];
      x[i] = (a * std::cos(angle) - b * std::sin(angle)) * rope.attention_scale();
      x[i + half] = (b * std::cos(angle) + a * std::sin(angle)) * rope.attention_scale();
    }
    return x;
  }

  void run_layer(int64_t layer, std::vector<Row>& hidden) const {
    const std::string prefix = fmt::format("model.layers.{}.", layer), attention = prefix + "self_attn.";
    const KvPolicy& kv = quantization_.kv_of(static_cast<int>(layer));
    const RopeConfig& rope = config_.rope_of(layer);
    const int64_t window = config_.sliding_window[static_cast<size_t>(layer)];
    std::vector<std::vector<Row>> keys(hidden.size()), values(hidden.size());
    const std::vector<Row> before = hidden;
    for (size_t t = 0; t < hidden.size(); ++t) {
      const auto position = static_cast<int64_t>(t);
      const Row x = norm(before[t], prefix + "input_layernorm.weight");
      const Row q = linear(attention + "q_proj", x), k = linear(attention + "k_proj", x),
                v = linear(attention + "v_proj", x);
      for (int64_t h = 0; h < config_.kv_heads; ++h) {
        const Row value(v.begin() + h * config_.head_dim, v.begin() + (h + 1) * config_.head_dim);
        keys[t].push_back(fake(head_of(k, h, attention + "k_norm.weight", rope, position), kv.group, kv.bits,
                               kv.symmetric, true));
        values[t].push_back(fake(value, kv.group, kv.bits, kv.symmetric, true));
      }
      Row attended;
      for (int64_t h = 0; h < config_.heads; ++h) {
        const Row query = head_of(q, h, attention + "q_norm.weight", rope, position);
        const auto shared = static_cast<size_t>(h / (config_.heads / config_.kv_heads));
        const size_t first =
            window > 0 && position + 1 > window ? static_cast<size_t>(position + 1 - window) : 0;
        Row weight;
        for (size_t s = first; s <= t; ++s)
          weight.push_back(config_.attention_scale *
                           std::inner_product(query.begin(), query.end(), keys[s][shared].begin(), 0.0));
        const double top = *std::max_element(weight.begin(), weight.end());
        double sum = 0;
        for (double& w : weight) sum += w = std::exp(w - top);
        for (int64_t d = 0; d < config_.head_dim; ++d) {
          double out = 0;
          for (size_t s = first; s <= t; ++s)
            out += weight[s - first] / sum * values[s][shared][static_cast<size_t>(d)];
          attended.push_back(out);
        }
      }
      Row delta = linear(attention + "o_proj", attended);
      if (config_.sandwich_norms) delta = norm(delta, prefix + "post_attention_layernorm.weight");
      add(hidden[t], delta);
      const Row y = norm(hidden[t], prefix + (config_.sandwich_norms ? "pre_feedforward_layernorm.weight"
                                                                     : "post_attention_layernorm.weight"));
      delta = config_.is_moe(layer) ? experts(prefix + "mlp.", y) : mlp(prefix + "mlp.", y);
      if (config_.sandwich_norms) delta = norm(delta, prefix + "post_feedforward_layernorm.weight");
      add(hidden[t], delta);
    }
  }

  static void add(Row& to, const Row& from) {
    for (size_t i = 0; i < to.size(); ++i) to[i] += from[i];
  }

  Row mlp(const std::string& prefix, const Row& x) const {
    const Row gate = linear(prefix + "gate_proj", x), up = linear(prefix + "up_proj", x);
    Row gated(gate.size());
    for (size_t i = 0; i < gate.size(); ++i) {
      const double g = gate[i], u = std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g);
      gated[i] = up[i] * (config_.activation == Activation::Silu ? g / (1 + std::exp(-g))
                                                                 : g / 2 * (1 + std::tanh(u)));
    }
    return linear(prefix + "down_proj", gated);
  }

  Row experts(const std::string& prefix, const Row& x) const {
    Row probability = product(prefix + "gate", x);
    const double top = *std::max_element(probability.begin(), probability.end());
    double sum = 0;
    for (double& p : probability) sum += p = std::exp(p - top);
    std::vector<size_t> order(probability.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return probability[a] > probability[b]; });
    order.resize(static_cast<size_t>(config_.moe.experts_per_token));
    double kept = 0;
    for (const size_t e : order) kept += probability[e];
    Row out(x.size(), 0.0);
    for (const size_t e : order) {
      const Row y = mlp(fmt::format("{}experts.{}.", prefix, e), x);
      const double weight = probability[e] / (config_.moe.normalize_top_k ? kept : sum);
      for (size_t i = 0; i < out.size(); ++i) out[i] += weight * y[i];
    }
    return out;
  }

  const MemoryCheckpoint& weights_;
  const QuantizationConfig& quantization_;
  const ModelConfig& config_;
};

}  // namespace

std::vector<double> naive_logits(const MemoryCheckpoint& weights, const QuantizationConfig& quantization,
                                 const std::vector<int32_t>& ids) {
  return Naive(weights, quantization).logits(ids);
}

}  // namespace quatrain
