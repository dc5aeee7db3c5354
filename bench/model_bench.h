// A model's speed: prefill, decode at depths and batches, beside what the machine streams and multiplies in
// the same run.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace quatrain::bench {

struct ModelBenchOptions {
  fs::path model;
  EngineOptions engine;
  std::vector<int64_t> prefill = {512};  // prompt lengths
  int64_t decode = 64;                   // tokens a sequence and round
  std::vector<int64_t> depth = {0};      // tokens before the first one decoded
  std::vector<int64_t> batch = {1};      // sequences decoded together
  int rounds = 5;
};

/// One kind of work: the median over the rounds, and the slowest and fastest round.
struct WorkResult {
  std::string work;  // "prefill" or "decode"
  int64_t batch = 1;
  int64_t depth = 0;
  int64_t tokens = 0;  // of one round
  double tok_s = 0, slowest = 0, fastest = 0;
  int64_t bytes_per_token = 0;  // weights and cache that are read for it
  double bandwidth_share = 0;   // of the streaming read beside it; 0 on a GPU
  double dot_share = 0;         // of the integer dot-product peak beside it; 0 where that is not known
  std::vector<std::pair<std::string, double>> operators;  // share of the time
};

/// A short greedy generation in which every half layer, norm and head is computed by the generic kernels too,
/// from the same input.
struct GoldenCheck {
  int64_t tokens = 0;
  double deviation = 0;  // the largest: rms of the difference over rms of the result
  std::string where;
};

struct ModelBench {
  bool on_cpu = true;  // else the limits of the machine are not measured, nor are kernels checked
  std::string isa, processor;
  int threads = 0;
  double load_seconds = 0;       // to the first token
  int64_t weight_bytes = 0;      // that a token reads
  int64_t last_level_cache = 0;  // bytes; 0 where the system does not say
  double read_bandwidth = 0;     // bytes a second, of a buffer as large as the weights (at most 1 GiB)
  double dot_peak = 0;           // operations a second
  int64_t peak_memory = 0;       // bytes resident at most, before the buffer of the streaming read
  GoldenCheck golden;
  std::vector<WorkResult> results;
};

/// Rounds go through all the work in turn, so that a busy machine disturbs every kind alike. Throws where a
/// depth exceeds the model's context, memory does not hold the batch, or the golden check fails.
ModelBench bench_model(const ModelBenchOptions& options);

}  // namespace quatrain::bench
