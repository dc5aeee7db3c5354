// The engine: a loaded model (16-bit or artifact), its paged KV cache, and batched forward passes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "engine/kernel_check.h"
#include "engine/operator_clock.h"
#include "model/config.h"

namespace quatrain {

struct EngineOptions {
  int threads = 0;             // 0: the cores this process may use
  int64_t context = 0;         // longest sequence; 0: the model's limit
  int64_t prefill_chunk = -1;  // most tokens that run through the layers together; -1: 256, 2,048 on GPUs
  int64_t kv_tokens = 0;  // tokens that all sequences together may hold; 0: grows as needed up to free memory
  // On the CPU: the first tokens of a sequence, and the last ones before each token, that attention reads as
  // they were before the cache's quantisation.
  int64_t kv_sink = 0, kv_recent = 0;
  std::string device = "cpu";  // cuda or cuda:N too, where the program was built for it
  uint64_t gpu_memory = 0;     // bytes of GPU memory for weights, buffers and KV cache; 0: what is free
  // On GPUs too, a sequence's results depend neither on what shares its passes nor on how its tokens are
  // split into them, bit for bit; slower. The CPU's never do.
  bool batch_invariant = false;
};

/// What one sequence feeds into a forward pass.
struct BatchItem {
  enum class Logits { None, Last, All };
  int64_t sequence = 0;
  std::span<const int32_t> tokens;
  Logits logits = Logits::Last;
  // With Logits::All, one a token, in place of its logits: the sink gets one value, the natural logarithm of
  // the probability of targets[i] behind tokens[i].
  std::span<const int32_t> targets = {};
};

/// What one token costs, whatever the machine (of the experts, those that run).
struct EngineCosts {
  int64_t weight_bytes = 0;  // that decoding one token reads
  int64_t kv_bytes = 0;      // of the cache that attention reads for every position before it
  int64_t multiplies = 0;    // multiply-adds of the layers' linears
  int64_t head_multiplies = 0;
};

/// Receives the logits of one token (or its target's log-probability): item and token are positions in the
/// batch and in its tokens. Called in order, from the calling thread; the span is valid during the call.
using LogitsSink = std::function<void(int64_t item, int64_t token, std::span<const float> logits)>;

class Engine {
 public:
  /// Loads a hub directory (16-bit or artifact), a GGUF file or a llama2.c file. Everything that could fail
  /// at the first token (shapes, group sizes, missing tensors) fails here, by name.
  static std::unique_ptr<Engine> load(const fs::path& model, const EngineOptions& options = {});
  virtual ~Engine() = default;

  virtual const ModelConfig& config() const = 0;
  /// The longest sequence this engine runs.
  virtual int64_t context() const = 0;
  virtual int threads() const = 0;
  /// Bytes of weights that decoding one token reads.
  virtual int64_t weight_bytes_per_token() const = 0;
  virtual EngineCosts costs() const { return {}; }
  /// Where the time of forward() went since its clear(); nullptr where it is not measured.
  virtual OperatorClock* clock() { return nullptr; }
  /// While on, forward() compares its kernels with the generic ones; nullptr where that is not possible.
  virtual KernelCheck* kernel_check() { return nullptr; }

  /// A new empty sequence; the id stays valid until free_sequence().
  virtual int64_t new_sequence() = 0;
  virtual void free_sequence(int64_t sequence) = 0;
  virtual int64_t length(int64_t sequence) const = 0;
  /// Drops the tail so that `length` tokens remain: a length that reusable() returns.
  virtual void truncate(int64_t sequence, int64_t length) = 0;
  /// The most tokens, at most `length`, that truncate() can leave: with kv_recent, what was unquantised at an
  /// earlier length is soon gone.
  virtual int64_t reusable(int64_t, int64_t length) const { return length; }
  /// KV pages in use, for metrics and leak tests.
  virtual int64_t pages_in_use() const = 0;
  /// KV pages that all sequences together may use: the limit, or what memory has room for now.
  virtual int64_t pages_in_all() const = 0;

  /// Appends every item's tokens to its sequence and computes the logits that are asked for. On the CPU, and
  /// on GPUs with batch_invariant, a sequence's results do not depend on the other items nor on how its
  /// tokens were split into calls.
  virtual void forward(std::span<const BatchItem> batch, const LogitsSink& sink) = 0;
};

}  // namespace quatrain
