#include "eval/scorer.h"

#include <vector>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/sampler.h"
#ifdef QUATRAIN_HAVE_TORCH
#include "quant/reference.h"
#endif

namespace quatrain {
namespace {

class NativeScorer : public Scorer {
 public:
  NativeScorer(const fs::path& model, const EngineOptions& options) : engine_(Engine::load(model, options)) {}

  std::string_view engine() const override { return "native"; }
  const ModelConfig& config() const override { return engine_->config(); }
  Engine* native() override { return engine_.get(); }

  void score(std::span<const int32_t> ids, int64_t first, const PositionSink& sink) override {
    run(ids, first, {}, sink);
  }

  std::vector<float> log_probabilities(std::span<const int32_t> ids, int64_t first) override {
    std::vector<float> values;
    run(ids.first(ids.size() - 1), first, ids.subspan(static_cast<size_t>(first) + 1),
        [&](int64_t, std::span<const float> value) { values.push_back(value.front()); });
    return values;
  }

 private:
  void run(std::span<const int32_t> ids, int64_t first, std::span<const int32_t> targets,
           const PositionSink& sink) {
    const int64_t sequence = engine_->new_sequence();
    const auto feed = [&](std::span<const int32_t> tokens, int64_t start, BatchItem::Logits logits,
                          std::span<const int32_t> wanted) {
      if (tokens.empty()) return;
      const BatchItem item{sequence, tokens, logits, wanted};
      engine_->forward({&item, 1}, [&](int64_t, int64_t token, std::span<const float> values) {
        sink(start + token, values);
      });
    };
    try {
      feed(ids.first(static_cast<size_t>(first)), 0, BatchItem::Logits::None, {});
      feed(ids.subspan(static_cast<size_t>(first)), first, BatchItem::Logits::All, targets);
    } catch (...) {
      engine_->free_sequence(sequence);
      throw;
    }
    engine_->free_sequence(sequence);
  }

  std::unique_ptr<Engine> engine_;
};

#ifdef QUATRAIN_HAVE_TORCH
class ReferenceScorer : public Scorer {
 public:
  ReferenceScorer(const fs::path& model, const EngineOptions& options)
      : model_(ReferenceModel::load(model, options.threads, options.device)) {}

  std::string_view engine() const override { return "reference"; }
  const ModelConfig& config() const override { return model_->config(); }

  void score(std::span<const int32_t> ids, int64_t first, const PositionSink& sink) override {
    const std::vector<float> logits = model_->logits(ids);
    const auto vocabulary = static_cast<size_t>(config().vocabulary);
    for (int64_t position = first; position < static_cast<int64_t>(ids.size()); ++position)
      sink(position, std::span(logits).subspan(static_cast<size_t>(position) * vocabulary, vocabulary));
  }

 private:
  std::unique_ptr<ReferenceModel> model_;
};
#endif

}  // namespace

std::vector<float> Scorer::log_probabilities(std::span<const int32_t> ids, int64_t first) {
  std::vector<float> values;
  score(ids.first(ids.size() - 1), first, [&](int64_t position, std::span<const float> logits) {
    values.push_back(static_cast<float>(log_probability(logits, ids[static_cast<size_t>(position) + 1])));
  });
  return values;
}

std::unique_ptr<Scorer> make_scorer(const fs::path& model, const ScorerOptions& options) {
  if (options.engine == "native") return std::make_unique<NativeScorer>(model, options.native);
  require(options.engine == "reference", "engine: \"{}\" is neither native nor reference", options.engine);
  if (options.native.kv_sink > 0 || options.native.kv_recent > 0)
    fail_usage(
        "engine: the reference quantises every key and value; --kv-sink and --kv-recent are of the native "
        "engine");
#ifdef QUATRAIN_HAVE_TORCH
  return std::make_unique<ReferenceScorer>(model, options.native);
#else
  fail("engine: \"reference\" needs a build with libtorch (-DQUATRAIN_TORCH=ON)");
#endif
}

}  // namespace quatrain
