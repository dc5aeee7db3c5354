#include "quant/pipeline.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "checkpoint/artifact.h"
#include "model/checkpoint.h"
#include "quant/activations/layers8.h"
#include "quant/calibrated_pipeline.h"
#include "quant/calibration.h"
#include "quant/finish.h"
#include "quant/finished.h"
#include "quant/policy.h"
#include "quant/reference/device.h"
#include "quant/refine/refine.h"
#include "quant/refine/staged.h"
#include "quant/stopwatch.h"
#include "quant/weights/rtn.h"

namespace quatrain {
namespace {

// The program itself with its libraries, and what one thread holds while it rounds rows.
constexpr uint64_t kProgramBytes = uint64_t{160} << 20;
constexpr uint64_t kThreadBytes = uint64_t{8} << 20;

class Quantizer {
 public:
  Quantizer(std::shared_ptr<const Checkpoint> checkpoint, const Recipe& recipe, const fs::path& output,
            const QuantizeOptions& options)
      : recipe_(recipe),
        output_(output),
        options_(options),
        checkpoint_(std::move(checkpoint)),
        config_(checkpoint_->config()),
        plan_(plan_quantization(config_, recipe)),
        pool_(options.threads) {}

  Json run() {
    for (const std::string& note : plan_.notes) log_info("{}", note);
    check_memory();
    ArtifactWriter writer(output_);
    add_token_matrix(writer, kEmbeddingName, plan_.config.embedding_bits);
    Progress progress("layers", config_.layers);
    for (int64_t layer = 0; layer < config_.layers; ++layer)
      progress.update(layer + 1, fmt::format("weight error {:.4f}", add_layer(writer, layer)));
    add_plain(writer, "model.norm.weight", "model.norm.weight", "F32");
    if (!plan_.config.lm_head_tied) add_token_matrix(writer, kHeadName, plan_.config.lm_head_bits);
    return finish_artifact(writer, *checkpoint_, config_, plan_.config, recipe_, linears_, make_report());
  }

 private:
  // The largest matrix as planes (FP32 and 16-bit copies where it stays unquantised), beside the threads'
  // rows.
  void check_memory() {
    uint64_t largest = 0;
    const auto consider = [&](int64_t rows, int64_t columns, int bits) {
      const auto weights = static_cast<uint64_t>(rows) * static_cast<uint64_t>(columns);
      largest = std::max(largest, bits == 16 ? 6 * weights : weights * static_cast<uint64_t>(bits) / 8);
    };
    consider(config_.vocabulary, config_.hidden, plan_.config.embedding_bits);
    consider(config_.vocabulary, config_.hidden, plan_.config.lm_head_bits);
    // Planes with every block selected, and FP16 scales read as FP32 for groups of 16.
    for (int64_t layer = 0; layer < config_.layers; ++layer)
      for (const LinearShape& linear : linears_of_layer(config_, layer))
        consider(linear.out, linear.in, recipe_.weights.bits == 8 || recipe_.residual.budget > 0 ? 8 : 5);
    predicted_ = kProgramBytes + static_cast<uint64_t>(pool_.threads()) * kThreadBytes + largest;
    log_info("predicted peak memory {:.0f} MiB, beside the source's mapped pages",
             static_cast<double>(predicted_) / 0x1p20);
    require(
        options_.max_ram == 0 || predicted_ <= options_.max_ram,
        "{}: about {:.0f} MiB of memory are needed, --max-ram allows {:.0f} MiB; the largest matrix alone "
        "takes {:.0f} MiB",
        checkpoint_->path().string(), static_cast<double>(predicted_) / 0x1p20,
        static_cast<double>(options_.max_ram) / 0x1p20, static_cast<double>(largest) / 0x1p20);
  }

  // Returns the layer's relative weight error, all its linears together.
  double add_layer(ArtifactWriter& writer, int64_t layer) {
    const Stopwatch watch;
    double error = 0, norm = 0;
    for (const LinearShape& linear : linears_of_layer(config_, layer)) {
      const auto [squared_error, squared_norm] =
          add_planes(writer, linear.name, linear.name, linear.out, linear.in);
      error += squared_error;
      norm += squared_norm;
      ++linears_;
    }
    for (const PlainShape& plain : plain_tensors_of_layer(config_, layer))
      add_plain(writer, plain.name, plain.name, plain.shape.size() == 1 ? "F32" : half_type(config_.dtype));
    const double relative = norm > 0 ? std::sqrt(error / norm) : 0;
    layers_.push_back({{"layer", layer}, {"relative_error", relative}, {"seconds", watch.seconds()}});
    return relative;
  }

  // Rounds the matrix `source` and writes it under `name`, its bias too. Returns its squared error and norm.
  std::pair<double, double> add_planes(ArtifactWriter& writer, const std::string& name,
                                       const std::string& source, int64_t rows, int64_t columns) {
    const Stopwatch watch;
    const RowReader read = [&](int64_t begin, int64_t end) {
      return checkpoint_->read_rows(source + ".weight", begin, end);
    };
    const WeightFormat format = weight_format(recipe_, plan_.config.linear(name), name);
    QuantizedMatrix matrix = quantize_rtn(name, rows, columns, read, format, pool_);
    if (checkpoint_->has(name + ".bias")) matrix.planes.bias = checkpoint_->read(name + ".bias");
    writer.add_planes(name, matrix.planes);
    const double relative =
        matrix.squared_norm > 0 ? std::sqrt(matrix.squared_error / matrix.squared_norm) : 0;
    matrices_.push_back({{"name", name},
                         {"rows", rows},
                         {"columns", columns},
                         {"weight_group", format.group},
                         {"residual_blocks", matrix.planes.residual_index.size()},
                         {"relative_error", relative},
                         {"seconds", watch.seconds()}});
    return {matrix.squared_error, matrix.squared_norm};
  }

  void add_plain(ArtifactWriter& writer, const std::string& name, const std::string& source,
                 std::string_view type) {
    writer.add_tensor(name, checkpoint_->shape(source), checkpoint_->read(source), type);
  }

  // The embedding or the head: planes, or 16-bit values.
  void add_token_matrix(ArtifactWriter& writer, const std::string& name, int bits) {
    // A tied head that takes other bits than the embedding is written from the embedding's values.
    const bool tied = name == kHeadName && config_.tied_embeddings;
    const std::string source = tied ? kEmbeddingName : name;
    if (bits == 16)
      add_plain(writer, name + ".weight", source + ".weight", half_type(config_.dtype));
    else
      add_planes(writer, name, source, config_.vocabulary, config_.hidden);
  }

  Json make_report() const {
    return {{"notes", plan_.notes},
            {"predicted_peak_bytes", predicted_},
            {"seconds", watch_.seconds()},
            {"layers", layers_},
            {"linears", matrices_}};
  }

  const Recipe& recipe_;
  const fs::path& output_;
  const QuantizeOptions& options_;
  std::shared_ptr<const Checkpoint> checkpoint_;
  const ModelConfig& config_;
  QuantizationPlan plan_;
  ThreadPool pool_;
  Stopwatch watch_;
  uint64_t predicted_ = 0;
  int64_t linears_ = 0;
  Json matrices_ = Json::array(), layers_ = Json::array();
};

Json quantize_unrefined(const std::shared_ptr<const Checkpoint>& checkpoint, const Recipe& recipe,
                        const fs::path& output, const QuantizeOptions& options) {
  if (recipe.transforms() || recipe.calibrated())
    return quantize_calibrated(checkpoint, recipe, output, options);
  return Quantizer(checkpoint, recipe, output, options).run();
}

// Behind the samples of the calibration, which the weights fit better than any other text.
std::vector<std::vector<int32_t>> refinement_samples(Recipe recipe, const Checkpoint& checkpoint,
                                                     const QuantizeOptions& options) {
  if (!options.samples.empty()) return options.samples;
  const int64_t calibration = recipe.calibration.samples;
  recipe.calibration.samples += recipe.refine.samples + kHeldOutSamples;
  std::vector<std::vector<int32_t>> ids = load_calibration(recipe, checkpoint.path()).ids;
  ids.erase(ids.begin(), ids.begin() + calibration);
  return ids;
}

// Positions that a model never saw would spoil its statistics.
Recipe within_context(Recipe recipe, const Checkpoint& checkpoint) {
  const int64_t context = checkpoint.config().max_positions;
  if (!recipe.calibrated() || recipe.calibration.length <= context) return recipe;
  log_info("calibration.length = {}: the model's context is {} tokens, so many are used",
           recipe.calibration.length, context);
  recipe.calibration.length = context;
  return recipe;
}

}  // namespace

Json quantize(const fs::path& model, const Recipe& recipe, const fs::path& output,
              const QuantizeOptions& options) {
  return quantize(open_checkpoint(model), recipe, output, options);
}

Json quantize(std::unique_ptr<Checkpoint> checkpoint, const Recipe& asked, const fs::path& output,
              const QuantizeOptions& options) {
  torch_device(options.device);  // before anything is written
  const std::shared_ptr<const Checkpoint> original = std::move(checkpoint);
  const Recipe recipe = choose_layers8(*original, within_context(asked, *original), options.samples);
  if (options.resume)
    if (const std::optional<Json> report = finished_before(output, *original, recipe)) return *report;
  if (recipe.refine.samples == 0) return quantize_unrefined(original, recipe, output, options);
  const std::vector<std::vector<int32_t>> samples = refinement_samples(recipe, *original, options);
  Recipe first = recipe;
  first.refine = {};
  if (std::ssize(samples) < kLeastRefinementSamples) {
    log_warn("{}: no refinement: it needs {} calibration samples, {} of them held out",
             original->path().string(), kLeastRefinementSamples, kHeldOutSamples);
    return quantize_unrefined(original, first, output, options);
  }
  const UnrefinedArtifact unrefined(output, *original, first, options.resume);
  Json timed;
  if (!unrefined.finished()) timed = quantize_unrefined(original, first, unrefined.path(), options);
  Json report = refine(original, unrefined.path(), recipe, samples, output, options.threads,
                       torch_device(options.device));
  unrefined.remove();
  if (timed.is_null()) return report;
  timed["refine"] = report["refine"];  // the rest of the stored report is the first run's without its times
  return timed;
}

}  // namespace quatrain
