#include "quant/calibrated_pipeline.h"

#include <torch/torch.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/rng.h"
#include "base/sha256.h"
#include "base/thread_pool.h"
#include "checkpoint/artifact.h"
#include "quant/calibration.h"
#include "quant/finish.h"
#include "quant/layer_quantizer.h"
#include "quant/math_threads.h"
#include "quant/planner/plan.h"
#include "quant/policy.h"
#include "quant/reference/device.h"
#include "quant/run_journal.h"
#include "quant/stopwatch.h"
#include "quant/transforms/kept_rotation.h"
#include "quant/transforms/merged_source.h"
#include "quant/weights/rtn.h"

namespace quatrain {
namespace {

constexpr int kJournalVersion = 4;                       // raised when bits or the format of entries change
constexpr uint64_t kBatchBytes = uint64_t{4} << 30;      // of temporaries, on a GPU
constexpr uint64_t kProgramBytes = uint64_t{400} << 20;  // the program, libtorch, and what its threads hold

RowReader rows_of(const torch::Tensor& matrix) {
  return [&matrix](int64_t begin, int64_t end) {
    const float* data = matrix.data_ptr<float>();
    return std::vector<float>(data + begin * matrix.size(1), data + end * matrix.size(1));
  };
}

std::span<const float> values_of(const torch::Tensor& in_memory) {
  return {in_memory.data_ptr<float>(), static_cast<size_t>(in_memory.numel())};
}

class CalibratedQuantizer {
 public:
  CalibratedQuantizer(std::shared_ptr<const Checkpoint> checkpoint, const Recipe& recipe,
                      const fs::path& output, const QuantizeOptions& options)
      : asked_(recipe),
        recipe_(planned(recipe, checkpoint->config())),
        output_(output),
        options_(options),
        checkpoint_(std::move(checkpoint)),
        device_(torch_device(options.device)),
        pool_(options.threads) {
    keep_freed_memory();
  }

  Json run() {
    const c10::InferenceMode inference;
    const ModelConfig& original = checkpoint_->config();
    const std::string where = checkpoint_->path().string();
    check_experts(original, where);
    check_sandwich(original, where);
    asked_.layers_with_8_bits(original.layers);  // fails where the recipe names a layer that is not there
    if (asked_.calibrated()) read_samples();
    check_memory(original);
    batches_ = batched(samples_.ids, samples_at_once(original));
    ArtifactWriter writer(output_);
    RunJournal journal(output_, identity(), options_.resume, original.layers, recipe_.calibrated());
    const int64_t finished = journal.finished();
    std::optional<RunStart> start = journal.start(recipe_.transform);
    scratch_ = writer.staging();
    const bool started = start.has_value();
    start_ = started ? std::move(*start) : RunStart{};
    prepare_source(started);
    const ModelConfig& config = source_->config();
    plan_ = plan_quantization(config, recipe_);
    for (const std::string& note : start_.notes) log_info("{}", note);

    CalibrationStreams streams{{}, {}, SampleWork(pool_, scratch_, device_)};
    embed(writer, streams, finished == 0 && recipe_.calibrated());
    if (!started) {
      if (asked_.plan.asked())
        make_plan();
      else if (recipe_.residual.scope == "global")
        choose_blocks(streams.exact);
      journal.write_start(start_);
    }
    const QuantizationChoice& choice = start_.choice;
    if (!choice.transforms.empty()) plan_ = plan_quantization(config, recipe_, choice.transforms);
    for (const std::string& note : plan_.notes) log_info("{}", note);
    for (const std::string& linear : choice.inputs8) {
      LinearPolicy policy = plan_.config.linear(linear);
      policy.activation.bits = 8;
      plan_.config.linears[linear] = policy;
    }
    for (int64_t index = 0; index < finished; ++index) add_layer(writer, journal.layer(index), index, {});
    if (finished > 0) {
      log_info("{} of {} layers were finished before", finished, config.layers);
      if (finished < config.layers && recipe_.calibrated()) {
        make_room(streams);
        journal.read_streams(streams);
      }
    }
    Progress progress("layers", config.layers - finished);
    for (int64_t index = finished; index < config.layers; ++index) {
      const Stopwatch watch;
      const Recipe own = recipe_of(index);
      DecoderLayer loaded = layer_of(index);
      const double behind_load = watch.seconds();
      const QuantizedLayer layer =
          quantize_layer(std::move(loaded), config, own, plan_.config, streams, pool_, choice.blocks);
      const double behind_weights = watch.seconds();
      journal.write(index, layer, streams);
      add_layer(writer, layer, index, watch.seconds());
      layers_.back()["stage_seconds"] = {{"load", behind_load},
                                         {"transforms", layer.transform_seconds},
                                         {"weights", behind_weights - behind_load - layer.transform_seconds},
                                         {"journal", watch.seconds() - behind_weights}};
      progress.update(index + 1 - finished,
                      recipe_.follows_stream() ? fmt::format("stream error {:.4f}", layer.stream_error) : "");
    }
    for (const auto* stream : {&streams.exact, &streams.quantized}) check_last(*stream);
    streams = {};
    add_plain(writer, "model.norm.weight", "F32");
    if (!plan_.config.lm_head_tied)
      add_matrix(writer, kHeadName, source_->head().weight, plan_.config.lm_head_bits);
    const Json report =
        finish_artifact(writer, *checkpoint_, config, plan_.config, asked_, linears_, make_report());
    journal.remove();
    return report;
  }

 private:
  // Statistics of inputs are kept by site, not by expert.
  void check_experts(const ModelConfig& config, const std::string& where) const {
    if (config.moe.experts == 0) return;
    const auto needs = [&](bool legal, const char* what) {
      require(legal, "{}: recipe {}: {} is not supported for a mixture of experts ({})", where, recipe_.name,
              what, config.architecture);
    };
    needs(!recipe_.transform.smooths(), "\"smooth\" in [transform]");
    needs(!recipe_.residual.sort, "residual.sort");
    needs(!recipe_.scores_inputs(), "residual.score = \"delta-hessian\"");
  }

  // A norm behind a linear commutes neither with a change of basis of the stream nor with a correction of it.
  void check_sandwich(const ModelConfig& config, const std::string& where) const {
    if (!config.sandwich_norms) return;
    const auto needs = [&](bool legal, const char* field, const char* value) {
      require(
          legal,
          "{}: recipe {}: {} has norms behind its linears, which do not commute with {}; set {} = {} (the "
          "recipe quatrain does)",
          where, recipe_.name, config.architecture, field, field, value);
    };
    needs(recipe_.transform.residual == "none", "transform.residual", "\"none\"");
    needs(!recipe_.residual.sort, "residual.sort", "false");
    needs(recipe_.weights.stream == 0, "weights.stream", "0");
  }

  void read_samples() {
    Recipe text = asked_;
    if (!asked_.unplanned().calibrated() && !asked_.plan.transforms)
      text.calibration.samples = asked_.plan.samples;
    samples_ = options_.samples.empty() ? load_calibration(text, checkpoint_->path())
                                        : CalibrationSamples{options_.samples, "given tokens", "", 0};
    const int64_t vocabulary = checkpoint_->config().vocabulary;
    for (const std::vector<int32_t>& ids : samples_.ids)
      for (const int32_t id : ids)
        require(id >= 0 && id < vocabulary, "{}: the calibration token {} is outside the vocabulary of {}",
                checkpoint_->path().string(), id, vocabulary);
  }

  std::string tokens_hash() const {
    Sha256 tokens;
    for (const std::vector<int32_t>& ids : samples_.ids) {
      const auto length = static_cast<uint64_t>(ids.size());
      tokens.update(&length, sizeof length);
      tokens.update(ids.data(), ids.size() * sizeof(int32_t));
    }
    return tokens.hex();
  }

  // What decides the result.
  Json identity() const {
    Json facts = {{"version", kJournalVersion},
                  {"model", checkpoint_->path().filename().string()},
                  {"fingerprint of the model", checkpoint_->fingerprint()},
                  {"recipe", asked_.to_toml()},
                  {"calibration text", samples_.text},
                  {"number of samples", samples_.ids.size()},
                  {"sha256 of the samples' tokens", tokens_hash()}};
    if (!device_.is_cpu()) {  // sums run in another order
      facts["device"] = "cuda";
      facts["number of samples at once"] = batches_.ids.empty() || batches_.sequence == 0
                                               ? 1
                                               : std::ssize(batches_.ids[0]) / batches_.sequence;
    }
    return facts;
  }

  // FP32 values of one sample's temporaries in a layer, bytes.
  uint64_t temporaries(const ModelConfig& config) const {
    uint64_t longest = 0;
    for (const std::vector<int32_t>& ids : samples_.ids) longest = std::max<uint64_t>(longest, ids.size());
    return 4 * longest *
           static_cast<uint64_t>(4 * inner_width(config) + 8 * config.hidden + 4 * config.query_width());
  }
  static int64_t inner_width(const ModelConfig& config) {
    return std::max(config.intermediate, config.moe.intermediate);
  }

  int64_t samples_at_once(const ModelConfig& config) const {
    if (device_.is_cpu() || samples_.ids.empty()) return 1;
    return static_cast<int64_t>(std::max<uint64_t>(1, kBatchBytes / temporaries(config)));
  }

  // Whatever the number of samples: the temporaries of one sample a thread, the Hessians of the widest input
  // in FP64, one layer, and the embedding three times (as it came, rotated, and what is made of it). Hidden
  // states of all samples lie in files.
  void check_memory(const ModelConfig& config) {
    uint64_t tokens = 0, longest = 0;
    for (const std::vector<int32_t>& ids : samples_.ids) {
      tokens += ids.size();
      longest = std::max<uint64_t>(longest, ids.size());
    }
    const auto wide = [](int64_t value) { return static_cast<uint64_t>(value); };
    const auto experts = std::max<uint64_t>(1, wide(config.moe.experts));
    const uint64_t hidden = wide(config.hidden), inner = wide(inner_width(config)),
                   queries = wide(config.query_width()), input = std::max({hidden, inner, queries});
    const uint64_t sample = temporaries(config) + 8 * input * input;
    const uint64_t resident = (config.sandwich_norms ? 7 : 5) * SampleWork::kResident;
    const uint64_t layer = 12 * (experts * 3 * inner * hidden + 2 * hidden * (queries + hidden)) +
                           (recipe_.follows_stream() ? 64 * input * input : 0);
    const uint64_t planning = asked_.plan.asked() ? 16 * experts * 3 * inner * hidden : 0;
    const uint64_t matrix = 12 * wide(config.vocabulary) * hidden;
    predicted_ =
        kProgramBytes +
        std::max(wide(pool_.threads()) * sample + (tokens > 0 ? resident : 0) + layer + planning, matrix);
    log_info("predicted peak memory {:.0f} MiB, beside the source's mapped pages",
             static_cast<double>(predicted_) / 0x1p20);
    if (tokens > 0) {
      const uint64_t states = 4 * tokens * ((recipe_.follows_stream() ? 6 : 3) * hidden + input);
      log_info("hidden states of {} calibration tokens take up to {:.0f} MiB {}", tokens,
               static_cast<double>(states) / 0x1p20,
               device_.is_cpu() ? "on disk, beside the output" : "of the GPU's memory");
    }
    require(
        options_.max_ram == 0 || predicted_ <= options_.max_ram,
        "{}: about {:.0f} MiB of memory are needed, --max-ram allows {:.0f} MiB; each of {} threads takes "
        "{:.0f} MiB for a sample of {} tokens: lower calibration.length or --threads",
        checkpoint_->path().string(), static_cast<double>(predicted_) / 0x1p20,
        static_cast<double>(options_.max_ram) / 0x1p20, pool_.threads(), static_cast<double>(sample) / 0x1p20,
        longest);
  }

  // The model as its layers are quantised: gains folded and the residual stream in another basis, or as it
  // came.
  void prepare_source(bool started) {
    torch::Tensor& rotation = start_.rotation;
    if (!started)
      rotation =
          kept_stream_rotation(options_.kept, checkpoint_->fingerprint(), tokens_hash(), checkpoint_, recipe_,
                               samples_.ids, start_.notes, SampleWork(pool_, scratch_, device_));
    source_ = checkpoint_weight_source(checkpoint_, device_);
    if (rotation.defined()) source_ = merge_rotation(std::move(source_), rotation.to(device_));
  }

  DecoderLayer layer_of(int64_t index) const {
    DecoderLayer layer(*source_, index);
    layer.sequence = batches_.sequence;
    return layer;
  }

  // Room for the hidden states of every batch.
  std::vector<torch::Tensor> rows_of_batches(const SampleWork& work) const {
    std::vector<torch::Tensor> like;
    for (const std::vector<int32_t>& ids : batches_.ids) like.push_back(torch::empty({std::ssize(ids), 0}));
    return work.rows(like, checkpoint_->config().hidden);
  }

  void make_room(CalibrationStreams& streams) const {
    streams.exact = rows_of_batches(streams.work);
    if (recipe_.follows_stream()) streams.quantized = rows_of_batches(streams.work);
  }

  torch::Tensor hidden_of(const torch::Tensor& embedding, const std::vector<int32_t>& ids) const {
    return embedded(embedding, ids) * checkpoint_->config().embedding_scale;
  }

  void embed(ArtifactWriter& writer, CalibrationStreams& streams, bool with_streams) {
    const torch::Tensor embedding = source_->embedding().contiguous();
    const NibblePlanes planes = add_matrix(writer, kEmbeddingName, embedding, plan_.config.embedding_bits);
    if (!with_streams || samples_.ids.empty()) return;
    make_room(streams);
    for (size_t s = 0; s < batches_.ids.size(); ++s) {
      streams.exact[s].copy_(hidden_of(embedding, batches_.ids[s]));
      SampleWork::rest(streams.exact[s]);
    }
    if (!recipe_.follows_stream()) return;
    // On a GPU the rows of a batch are more than those of the vocabulary.
    const torch::Tensor quantized =
        device_.is_cpu() || planes.rows == 0 ? torch::Tensor() : dequantized(planes, device_, pool_);
    for (size_t s = 0; s < batches_.ids.size(); ++s) {
      const std::vector<int32_t>& ids = batches_.ids[s];
      torch::Tensor& rows = streams.quantized[s];
      if (planes.rows == 0) {
        rows.copy_(streams.exact[s]);
      } else if (quantized.defined()) {
        rows.copy_(hidden_of(quantized, ids));
      } else {
        for (size_t t = 0; t < ids.size(); ++t)
          planes.dequantize_row(ids[t], rows.data_ptr<float>() + static_cast<int64_t>(t) * planes.columns);
        rows *= checkpoint_->config().embedding_scale;
      }
      SampleWork::rest(rows);
      SampleWork::rest(streams.exact[s]);
    }
  }

  // Every linear looks at its inputs; behind the last there is none.
  void check_last(const std::vector<torch::Tensor>& stream) const {
    for (const torch::Tensor& rows : stream)
      require(torch::isfinite(rows).all().item<bool>(),
              "{}: the hidden states behind model.layers.{} are not finite: its weights are too large for "
              "FP32 sums",
              checkpoint_->path().string(), checkpoint_->config().layers - 1);
  }

  // Blocks of all layers compete: every layer is scored before the first is quantised.
  void choose_blocks(const std::vector<torch::Tensor>& hidden) {
    CalibrationStreams stream{hidden, {}, SampleWork(pool_, scratch_, device_)};
    std::map<std::string, ScoredMatrix> scored;
    const ModelConfig& config = source_->config();
    Progress progress("layers scored", config.layers);
    for (int64_t index = 0; index < config.layers; ++index) {
      scored.merge(score_layer(layer_of(index), config, recipe_, plan_.config, stream, pool_));
      progress.update(index + 1);
    }
    start_.choice.blocks = choose_globally(scored, recipe_.residual.budget);
  }

  void make_plan() {
    std::vector<std::vector<int32_t>> samples = samples_.ids;
    samples.resize(std::min(samples.size(), static_cast<size_t>(asked_.plan.samples)));
    for (std::vector<int32_t>& ids : samples)
      ids.resize(std::min(ids.size(), static_cast<size_t>(asked_.plan.length)));
    const std::vector<PlanVariant> variants = plan_variants(source_->config(), asked_);
    start_.choice = choose_plan(
        source_->config(), asked_, variants,
        measure_sensitivities(*source_, variants, samples, SampleWork(pool_, scratch_, device_), pool_));
  }

  // What layer `index` gets: the recipe, with the transforms that a plan chose for it.
  Recipe recipe_of(int64_t index) const {
    Recipe own = recipe_;
    const std::vector<Recipe::Transforms>& chosen = start_.choice.transforms;
    if (!chosen.empty()) own.transform = chosen[static_cast<size_t>(index)];
    return own;
  }

  void add_layer(ArtifactWriter& writer, const QuantizedLayer& layer, int64_t index,
                 std::optional<double> seconds) {
    const ModelConfig& config = source_->config();
    for (const QuantizedLinear& linear : layer.linears) {
      writer.add_planes(linear.name, linear.planes);
      matrices_.push_back(linear.report);
      ++linears_;
    }
    for (const auto& [name, tensor] : layer.transforms) {
      const torch::Tensor values = in_memory(tensor);
      const bool key = name.ends_with("key_transform");  // its two matrices are each other's inverse: FP32
      writer.add_tensor(name, values.sizes().vec(), values_of(values), key ? "F32" : "BF16");
    }
    for (const PlainShape& plain : plain_tensors_of_layer(config, index)) {
      const auto rescaled = layer.rescaled.find(plain.name);
      if (rescaled == layer.rescaled.end())
        add_plain(writer, plain.name, plain.shape.size() == 1 ? "F32" : half_type(config.dtype));
      else
        writer.add_tensor(plain.name, plain.shape, values_of(in_memory(rescaled->second)), "F32");
    }
    Json entry = {{"layer", index}};
    if (seconds) entry["seconds"] = *seconds;
    if (recipe_.follows_stream()) entry["stream_error"] = layer.stream_error;
    if (!layer.smoothing.empty()) entry["smoothing"] = layer.smoothing;
    if (!layer.coverage.is_null()) add_coverage(layer.coverage, entry);
    layers_.push_back(entry);
  }

  static void add_coverage(const Json& coverage, Json& entry) {
    entry.update(coverage);
    if (const Json starved = coverage.value("starved", Json::array()); !starved.empty())
      log_warn("{}: too few calibration tokens reach these experts, every token was used for them",
               fmt::join(starved.get<std::vector<std::string>>(), ", "));
  }

  void add_plain(ArtifactWriter& writer, const std::string& name, std::string_view type) {
    const torch::Tensor values = in_memory(source_->plain(name));
    writer.add_tensor(name, values.sizes().vec(), values_of(values), type);
  }

  // The embedding or the head: planes, or 16-bit values (the result is then empty).
  NibblePlanes add_matrix(ArtifactWriter& writer, const std::string& name,
                          const torch::Tensor& matrix_on_device, int bits) {
    const Stopwatch watch;
    const torch::Tensor weight = in_memory(matrix_on_device);
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

  Json make_report() const {
    std::vector<std::string> notes = start_.notes;
    notes.insert(notes.end(), plan_.notes.begin(), plan_.notes.end());
    Json report = {{"notes", notes},
                   {"predicted_peak_bytes", predicted_},
                   {"seconds", watch_.seconds()},
                   {"layers", layers_},
                   {"linears", matrices_}};
    if (!start_.choice.report.is_null()) report["plan"] = start_.choice.report;
    if (asked_.calibrated())
      report["calibration"] = {{"text", samples_.text},
                               {"text_sha256", samples_.sha256},
                               {"text_tokens", samples_.text_tokens},
                               {"samples", samples_.ids.size()},
                               {"length", samples_.ids.front().size()}};
    return report;
  }

  const Recipe& asked_;  // what was asked for; its plan is made into what every layer gets, recipe_
  const Recipe recipe_;
  const fs::path& output_;
  const QuantizeOptions& options_;
  std::shared_ptr<const Checkpoint> checkpoint_;
  const torch::Device device_;
  ThreadPool pool_;
  OneMathThread one_math_thread_;
  Stopwatch watch_;
  CalibrationSamples samples_;
  SampleBatches batches_;
  std::unique_ptr<WeightSource> source_;
  QuantizationPlan plan_;
  RunStart start_;
  fs::path scratch_;
  uint64_t predicted_ = 0;
  int64_t linears_ = 0;
  Json matrices_ = Json::array(), layers_ = Json::array();
};

}  // namespace

Json quantize_calibrated(std::shared_ptr<const Checkpoint> checkpoint, const Recipe& recipe,
                         const fs::path& output, const QuantizeOptions& options) {
  if (options.resume && is_artifact(output) && fs::exists(Journal::path_of(output))) {
    // Killed between the last rename and the end of its journal.
    log_info("{}: is complete already", output.string());
    Journal::discard(output);
    return read_json(output / "quantization_report.json");
  }
  return CalibratedQuantizer(std::move(checkpoint), recipe, output, options).run();
}

}  // namespace quatrain
