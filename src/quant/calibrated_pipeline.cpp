#include "quant/calibrated_pipeline.h"

#include <torch/torch.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/rng.h"
#include "base/thread_pool.h"
#include "checkpoint/artifact.h"
#include "quant/calibration.h"
#include "quant/layer_quantizer.h"
#include "quant/policy.h"
#include "quant/stopwatch.h"
#include "quant/text_files.h"
#include "quant/transforms/merged_source.h"
#include "quant/transforms/rotation.h"
#include "quant/transforms/top1_pca.h"
#include "quant/weights/rtn.h"

namespace quatrain {
namespace {

constexpr uint64_t kProgramBytes = uint64_t{400} << 20;  // the program, libtorch, and what its threads hold

RowReader rows_of(const torch::Tensor& matrix) {
  return [&matrix](int64_t begin, int64_t end) {
    const float* data = matrix.data_ptr<float>();
    return std::vector<float>(data + begin * matrix.size(1), data + end * matrix.size(1));
  };
}

std::span<const float> values_of(const torch::Tensor& contiguous) {
  return {contiguous.data_ptr<float>(), static_cast<size_t>(contiguous.numel())};
}

class CalibratedQuantizer {
 public:
  CalibratedQuantizer(std::unique_ptr<Checkpoint> checkpoint, const Recipe& recipe, const fs::path& output,
                      const QuantizeOptions& options)
      : recipe_(recipe),
        output_(output),
        options_(options),
        checkpoint_(std::move(checkpoint)),
        pool_(options.threads) {
    at::set_num_threads(pool_.threads());
  }

  Json run() {
    const c10::InferenceMode inference;
    const ModelConfig& original = checkpoint_->config();
    const std::string where = checkpoint_->path().string();
    require(original.moe.experts == 0 && !original.sandwich_norms,
            "{}: recipe {}: transforms and calibrated weights need a dense model without norms behind its "
            "linears ({} is none); use an rtn recipe without transforms",
            where, recipe_.name, original.architecture);
    if (recipe_.calibrated()) read_samples();
    check_memory(original);
    ArtifactWriter writer(output_);
    prepare_source();
    const ModelConfig& config = source_->config();
    plan_ = plan_quantization(config, recipe_);
    for (const std::string& note : notes_) log_info("{}", note);
    for (const std::string& note : plan_.notes) log_info("{}", note);

    CalibrationStreams streams;
    embed(writer, streams);
    Progress progress("layers", config.layers);
    for (int64_t index = 0; index < config.layers; ++index) {
      const double error = add_layer(writer, streams, index);
      progress.update(index + 1, recipe_.follows_stream() ? fmt::format("stream error {:.4f}", error) : "");
    }
    streams = {};
    add_plain(writer, "model.norm.weight", "F32");
    if (!plan_.config.lm_head_tied)
      add_matrix(writer, kHeadName, source_->head().weight, plan_.config.lm_head_bits);
    const std::string summary =
        fmt::format("quantised {} of {} linear layers", linears_ + (plan_.config.lm_head_bits != 16 ? 1 : 0),
                    linears_ + 1);
    log_info("{}", summary);
    write_text_files(checkpoint_->path(), config, writer.staging());
    ModelConfig written = config;
    written.tied_embeddings = plan_.config.lm_head_tied;
    const Json report = make_report(summary);
    writer.finish(written.to_json(), plan_.config, recipe_.to_toml(), report);
    return report;
  }

 private:
  void read_samples() {
    samples_ = options_.samples.empty() ? load_calibration(recipe_, checkpoint_->path())
                                        : CalibrationSamples{options_.samples, "given tokens", "", 0};
    const int64_t vocabulary = checkpoint_->config().vocabulary;
    for (const std::vector<int32_t>& ids : samples_.ids)
      for (const int32_t id : ids)
        require(id >= 0 && id < vocabulary, "{}: the calibration token {} is outside the vocabulary of {}",
                checkpoint_->path().string(), id, vocabulary);
  }

  // Hidden states at three boundaries and one quantised (FP32), the widest input of the samples, and the
  // embedding three times (as it came, rotated, and what is made of it).
  void check_memory(const ModelConfig& config) {
    uint64_t tokens = 0;
    for (const std::vector<int32_t>& ids : samples_.ids) tokens += ids.size();
    const auto bytes = [](uint64_t count, int64_t width, uint64_t each) {
      return count * static_cast<uint64_t>(width) * each;
    };
    const uint64_t streams = bytes(tokens, (recipe_.follows_stream() ? 4 : 3) * config.hidden, 4);
    const uint64_t inputs =
        recipe_.follows_stream() ? bytes(tokens, std::max(config.query_width(), config.intermediate), 4) : 0;
    const uint64_t matrix = bytes(static_cast<uint64_t>(config.vocabulary), config.hidden, 12);
    const uint64_t layer = bytes(static_cast<uint64_t>(config.intermediate), 3 * config.hidden, 32);
    predicted_ = kProgramBytes + std::max(streams + inputs + layer, matrix);
    log_info("predicted peak memory {:.0f} MiB, beside the source's mapped pages",
             static_cast<double>(predicted_) / 0x1p20);
    require(
        options_.max_ram == 0 || predicted_ <= options_.max_ram,
        "{}: about {:.0f} MiB of memory are needed, --max-ram allows {:.0f} MiB; {} calibration tokens take "
        "{:.0f} MiB: lower calibration.samples",
        checkpoint_->path().string(), static_cast<double>(predicted_) / 0x1p20,
        static_cast<double>(options_.max_ram) / 0x1p20, tokens,
        static_cast<double>(streams + inputs) / 0x1p20);
  }

  // The model as its layers are quantised: gains folded and the residual stream rotated, or as it came.
  void prepare_source() {
    if (recipe_.transform.residual == "none") {
      source_ = checkpoint_weight_source(checkpoint_);
      return;
    }
    torch::Tensor rotation;
    const int64_t width = checkpoint_->config().hidden;
    const uint64_t seed = transform_seed(recipe_, 0, "residual");
    if (recipe_.transform.residual == "hadamard") {
      const int64_t order = hadamard_order(width);
      if (order != width)
        notes_.push_back(fmt::format(
            "width {}: no Hadamard matrix of this order is known, the residual rotation has blocks of {}",
            width, order));
      rotation = hadamard_rotation(width, order, seed);
    } else {
      const int64_t group = fitting_group(width, recipe_.transform.residual_group);
      if (group != recipe_.transform.residual_group)
        notes_.push_back(fmt::format("width {}: residual groups of {} do not divide it, {} are used", width,
                                     recipe_.transform.residual_group, group));
      rotation = top1_pca_rotation(top1_rows(), group, seed);
    }
    source_ = merge_rotation(checkpoint_weight_source(checkpoint_), rotation);
  }

  torch::Tensor hidden_of(const torch::Tensor& embedding, const std::vector<int32_t>& ids) const {
    const torch::Tensor index = torch::tensor(ids, torch::kInt).to(torch::kLong);
    return embedding.index_select(0, index) * checkpoint_->config().embedding_scale;
  }

  // Of as many samples as fill the rank, the inputs of q, k, v and of gate, up in every layer.
  torch::Tensor top1_rows() const {
    const auto source = merge_rotation(checkpoint_weight_source(checkpoint_), {});
    const ModelConfig& config = source->config();
    const int64_t wanted = (config.hidden + 2 * config.layers - 1) / (2 * config.layers);
    const auto count = static_cast<size_t>(std::min<int64_t>(wanted, std::ssize(samples_.ids)));
    std::vector<torch::Tensor> hidden, rows;
    {
      const torch::Tensor embedding = source->embedding();
      for (size_t s = 0; s < count; ++s) hidden.push_back(hidden_of(embedding, samples_.ids[s]));
    }
    LayerHooks hooks;
    hooks.linear_input = [&](Site site, int64_t, const torch::Tensor& input) {
      if (site == Site::Qkv || site == Site::GateUp) rows.push_back(top1_token(input));
    };
    Progress progress("layers of the residual rotation", config.layers);
    for (int64_t index = 0; index < config.layers; ++index) {
      const DecoderLayer layer(*source, index);
      for (torch::Tensor& x : hidden) x = layer.forward(x, hooks);
      progress.update(index + 1);
    }
    return torch::cat(rows);
  }

  void embed(ArtifactWriter& writer, CalibrationStreams& streams) {
    const torch::Tensor embedding = source_->embedding().contiguous();
    for (const std::vector<int32_t>& ids : samples_.ids) streams.exact.push_back(hidden_of(embedding, ids));
    const NibblePlanes planes = add_matrix(writer, kEmbeddingName, embedding, plan_.config.embedding_bits);
    if (!recipe_.follows_stream()) return;
    for (size_t s = 0; s < samples_.ids.size(); ++s) {
      const std::vector<int32_t>& ids = samples_.ids[s];
      if (planes.rows == 0) {
        streams.quantized.push_back(streams.exact[s].clone());
        continue;
      }
      torch::Tensor rows = torch::empty_like(streams.exact[s]);
      for (size_t t = 0; t < ids.size(); ++t)
        planes.dequantize_row(ids[t], rows.data_ptr<float>() + static_cast<int64_t>(t) * planes.columns);
      streams.quantized.push_back(rows * checkpoint_->config().embedding_scale);
    }
  }

  double add_layer(ArtifactWriter& writer, CalibrationStreams& streams, int64_t index) {
    const Stopwatch watch;
    const ModelConfig& config = source_->config();
    const QuantizedLayer layer =
        quantize_layer(DecoderLayer(*source_, index), config, recipe_, plan_.config, streams, pool_);
    for (const QuantizedLinear& linear : layer.linears) {
      writer.add_planes(linear.name, linear.planes);
      matrices_.push_back(linear.report);
      ++linears_;
    }
    for (const auto& [name, tensor] : layer.transforms) {
      const torch::Tensor values = tensor.contiguous();
      const bool key = name.ends_with("key_transform");  // its two matrices are each other's inverse: FP32
      writer.add_tensor(name, values.sizes().vec(), values_of(values), key ? "F32" : "BF16");
    }
    for (const PlainShape& plain : plain_tensors_of_layer(config, index))
      add_plain(writer, plain.name, plain.shape.size() == 1 ? "F32" : half_type(config.dtype));
    Json entry = {{"layer", index}, {"seconds", watch.seconds()}};
    if (recipe_.follows_stream()) entry["stream_error"] = layer.stream_error;
    layers_.push_back(entry);
    return layer.stream_error;
  }

  void add_plain(ArtifactWriter& writer, const std::string& name, std::string_view type) {
    const torch::Tensor values = source_->plain(name).contiguous();
    writer.add_tensor(name, values.sizes().vec(), values_of(values), type);
  }

  // The embedding or the head: planes, or 16-bit values (the result is then empty).
  NibblePlanes add_matrix(ArtifactWriter& writer, const std::string& name, const torch::Tensor& weight,
                          int bits) {
    const Stopwatch watch;
    if (bits == 16) {
      writer.add_tensor(name + ".weight", weight.sizes().vec(), values_of(weight),
                        half_type(source_->config().dtype));
      return {};
    }
    const WeightFormat format = weight_format(recipe_, plan_.config.linear(name), name);
    QuantizedMatrix matrix =
        quantize_rtn(name, weight.size(0), weight.size(1), rows_of(weight), format, pool_);
    writer.add_planes(name, matrix.planes);
    matrices_.push_back(
        {{"name", name},
         {"rows", weight.size(0)},
         {"columns", weight.size(1)},
         {"weight_group", format.group},
         {"residual_blocks", matrix.planes.residual_index.size()},
         {"relative_error",
          matrix.squared_norm > 0 ? std::sqrt(matrix.squared_error / matrix.squared_norm) : 0},
         {"seconds", watch.seconds()}});
    return std::move(matrix.planes);
  }

  Json make_report(const std::string& summary) const {
    std::vector<std::string> notes = notes_;
    notes.insert(notes.end(), plan_.notes.begin(), plan_.notes.end());
    Json report = {{"summary", summary},
                   {"recipe", recipe_.name},
                   {"seed", recipe_.seed},
                   {"source",
                    {{"name", checkpoint_->path().filename().string()},
                     {"architecture", checkpoint_->config().architecture},
                     {"parameters", parameter_count(checkpoint_->config())},
                     {"fingerprint", checkpoint_->fingerprint()}}},
                   {"notes", notes},
                   {"predicted_peak_bytes", predicted_},
                   {"seconds", watch_.seconds()},
                   {"layers", layers_},
                   {"linears", matrices_}};
    if (recipe_.calibrated())
      report["calibration"] = {{"text", samples_.text},
                               {"text_sha256", samples_.sha256},
                               {"text_tokens", samples_.text_tokens},
                               {"samples", samples_.ids.size()},
                               {"length", samples_.ids.front().size()}};
    return report;
  }

  const Recipe& recipe_;
  const fs::path& output_;
  const QuantizeOptions& options_;
  std::shared_ptr<const Checkpoint> checkpoint_;
  ThreadPool pool_;
  Stopwatch watch_;
  CalibrationSamples samples_;
  std::unique_ptr<WeightSource> source_;
  QuantizationPlan plan_;
  std::vector<std::string> notes_;
  uint64_t predicted_ = 0;
  int64_t linears_ = 0;
  Json matrices_ = Json::array(), layers_ = Json::array();
};

}  // namespace

Json quantize_calibrated(std::unique_ptr<Checkpoint> checkpoint, const Recipe& recipe, const fs::path& output,
                         const QuantizeOptions& options) {
  return CalibratedQuantizer(std::move(checkpoint), recipe, output, options).run();
}

}  // namespace quatrain
