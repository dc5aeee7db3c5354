// One small file a verb: add_VERB puts its subcommand, options and action into the program.
#pragma once

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <limits>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/engine.h"

namespace quatrain {

/// Flags that every verb has.
struct CommonOptions {
  int threads = 0;
  bool json = false, pin = false;
  std::string device = "cpu";
  std::string gpu_memory;
  int64_t kv_sink = 0, kv_recent = 0;
  bool batch_invariant = false;

  /// Threads, device, memory and unquantised tokens of an engine; pins the threads where that was asked.
  void apply_to(EngineOptions& engine) const;
};

/// The check of a flag that takes a whole number from `least` up; `Number` is the type that must hold it.
template <typename Number>
CLI::Validator whole_number(Number least) {
  const auto check = [least](const std::string& text) {
    Number value = 0;
    const char* end = text.data() + text.size();
    const auto [next, error] = std::from_chars(text.data(), end, value);
    if (error == std::errc() && next == end && value >= least) return std::string();
    return fmt::format("\"{}\" is not a whole number from {} to {}", text, least,
                       std::numeric_limits<Number>::max());
  };
  return CLI::Validator(check, "");
}

/// Adds --threads, --json and --device (cpu).
void add_common(CLI::App& verb, CommonOptions& options);
/// The same for verbs that quantise: --device takes cuda and cuda:N too; whether there is one, libtorch says.
void add_quantizer_common(CLI::App& verb, CommonOptions& options);
/// The same for verbs that run a model: --device takes cuda and cuda:N too where the program was built for
/// them, and there are --pin, --gpu-memory, --batch-invariant, --kv-sink and --kv-recent.
void add_engine_common(CLI::App& verb, CommonOptions& options);

/// "8G", "512M", "1073741824": bytes. Anything else is a UsageError that names `flag`.
uint64_t parse_bytes(const std::string& text, const std::string& flag);
/// "1,2,3": token ids. Anything else is a UsageError that names `flag`.
std::vector<int32_t> parse_ids(const std::string& text, const std::string& flag);
/// One JSON document on stdout.
void print_json(const Json& json);

void add_quantize(CLI::App& app);
void add_eval(CLI::App& app);
void add_compare(CLI::App& app);
void add_run(CLI::App& app);
void add_inspect(CLI::App& app);
void add_convert(CLI::App& app);
void add_synth(CLI::App& app);
void add_tokenize(CLI::App& app);
void add_detokenize(CLI::App& app);
void add_template(CLI::App& app);
void add_logits(CLI::App& app);
void add_serve(CLI::App& app);
void add_bench(CLI::App& app);

}  // namespace quatrain
