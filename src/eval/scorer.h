// Something that turns token ids into logits: the engine, or the fake-quantised reference.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "engine/engine.h"
#include "model/config.h"

namespace quatrain {

/// Receives the logits after token `position` of a window; positions come in ascending order.
using PositionSink = std::function<void(int64_t position, std::span<const float> logits)>;

class Scorer {
 public:
  virtual ~Scorer() = default;
  /// "native" or "reference", as results name it.
  virtual std::string_view engine() const = 0;
  virtual const ModelConfig& config() const = 0;
  /// Runs one window from an empty context; `sink` sees positions [first, ids.size()).
  virtual void score(std::span<const int32_t> ids, int64_t first, const PositionSink& sink) = 0;
  /// Runs one window from an empty context: the natural logarithm of the probability that ids[t + 1] has
  /// behind ids[t], for t from `first` to ids.size() - 2.
  virtual std::vector<float> log_probabilities(std::span<const int32_t> ids, int64_t first);
  /// The engine behind it, for work that windows do not express (tasks); null for the reference.
  virtual Engine* native() { return nullptr; }
};

struct ScorerOptions {
  std::string engine = "native";  // or "reference"
  EngineOptions native;           // the reference takes its threads and its device
};

/// Loads `model` for scoring. "reference" needs a build with libtorch and knows no unquantised tokens
/// (kv_sink or kv_recent is a UsageError); an unknown engine is an Error.
std::unique_ptr<Scorer> make_scorer(const fs::path& model, const ScorerOptions& options);

}  // namespace quatrain
