// quatrain bench: how fast a model runs here, beside what the machine could do.
#include <fmt/format.h>

#include <memory>

#include "base/error_context.h"
#include "model_bench.h"
#include "verb.h"

namespace quatrain {
namespace {

using bench::ModelBench;
using bench::ModelBenchOptions;
using bench::WorkResult;

void print_machine(const ModelBench& bench) {
  if (!bench.on_cpu)
    return fmt::print(
        "  the machine's limits and the kernels are not looked at on a GPU: scripts/gpu-bench and gpu-test "
        "do\n");
  fmt::print("  {:.1f} MB of weights a token, {} the {:.0f} MB of last-level cache\n",
             static_cast<double>(bench.weight_bytes) / 1e6,
             bench.weight_bytes <= bench.last_level_cache ? "within" : "beyond",
             static_cast<double>(bench.last_level_cache) / 1e6);
  fmt::print("  machine: {:.1f} GB/s streaming read", bench.read_bandwidth / 1e9);
  if (bench.dot_peak > 0) fmt::print(", {:.0f} GOP/s integer dot products", bench.dot_peak / 1e9);
  fmt::print("\n  golden generation: {} tokens, the kernels within {:.2e} of the generic ones{}{}\n",
             bench.golden.tokens, bench.golden.deviation, bench.golden.where.empty() ? "" : ", most at ",
             bench.golden.where);
}

std::string percent(double share) {
  return share > 0 ? fmt::format("{:.1f}%", 100 * share) : "-";
}

void print(const ModelBenchOptions& options, const ModelBench& bench) {
  if (bench.on_cpu)
    fmt::print("{}: {}, {} threads, {}\n", options.model.string(), bench.isa, bench.threads, bench.processor);
  else
    fmt::print("{}: {}\n", options.model.string(), options.engine.device);
  fmt::print("  loaded to the first token in {:.2f} s, {:.1f} MB resident at most\n", bench.load_seconds,
             static_cast<double>(bench.peak_memory) / 1e6);
  print_machine(bench);
  fmt::print("{:8} {:>5} {:>6} {:>7} {:>10} {:>19} {:>9} {:>9} {:>8}\n", "work", "batch", "depth", "tokens",
             "tok/s", "slowest - fastest", "MB/token", "bandwidth", "dot peak");
  for (const WorkResult& r : bench.results) {
    fmt::print("{:8} {:>5} {:>6} {:>7} {:>10.1f} {:>19} {:>9.2f} {:>9} {:>8}\n", r.work, r.batch, r.depth,
               r.tokens, r.tok_s, fmt::format("{:.1f} - {:.1f}", r.slowest, r.fastest),
               static_cast<double>(r.bytes_per_token) / 1e6, percent(r.bandwidth_share),
               percent(r.dot_share));
    std::string shares;
    double transforms = 0;
    for (const auto& [name, share] : r.operators) {
      if (share >= 0.005) shares += fmt::format(" {} {:.1f}%", name, 100 * share);
      if (name.ends_with("_transform")) transforms += share;
    }
    if (transforms > 0) shares += fmt::format("; transforms in all {:.1f}%", 100 * transforms);
    if (!shares.empty()) fmt::print("        {}\n", shares);
  }
}

Json to_json(const ModelBenchOptions& options, const ModelBench& bench) {
  Json results = Json::array();
  for (const WorkResult& r : bench.results) {
    Json operators = Json::object();
    for (const auto& [name, share] : r.operators) operators[name] = share;
    results.push_back({{"work", r.work},
                       {"batch", r.batch},
                       {"depth", r.depth},
                       {"tokens", r.tokens},
                       {"tok_s", r.tok_s},
                       {"tok_s_slowest", r.slowest},
                       {"tok_s_fastest", r.fastest},
                       {"bytes_per_token", r.bytes_per_token},
                       {"bandwidth_share", r.bandwidth_share},
                       {"dot_share", r.dot_share},
                       {"operators", operators}});
  }
  Json golden = {
      {"tokens", bench.golden.tokens}, {"deviation", bench.golden.deviation}, {"where", bench.golden.where}};
  if (!bench.on_cpu) golden = nullptr;
  return {{"model", options.model.string()},
          {"device", options.engine.device},
          {"isa", bench.isa},
          {"processor", bench.processor},
          {"threads", bench.threads},
          {"rounds", options.rounds},
          {"load_seconds", bench.load_seconds},
          {"peak_memory", bench.peak_memory},
          {"weight_bytes", bench.weight_bytes},
          {"last_level_cache", bench.last_level_cache},
          {"read_bandwidth", bench.read_bandwidth},
          {"dot_peak", bench.dot_peak},
          {"golden", golden},
          {"results", results}};
}

}  // namespace

void add_bench(CLI::App& app) {
  struct Options {
    CommonOptions common;
    ModelBenchOptions bench;
  };
  auto options = std::make_shared<Options>();
  CLI::App* verb = app.add_subcommand("bench", "Measure a model's speed beside the machine's limits");
  verb->footer("Example: quatrain bench smollm2-q4 --prefill 512 --decode 64 --depth 0,2048 --batch 1,4");
  verb->add_option("model", options->bench.model, "16-bit model or artifact")->required();
  verb->add_option("--prefill", options->bench.prefill, "prompt lengths, e.g. 512,2048 (default 512)")
      ->delimiter(',')
      ->check(whole_number<int64_t>(1));
  verb->add_option("--decode", options->bench.decode, "tokens to decode (default 64); 0: none")
      ->check(whole_number<int64_t>(0));
  verb->add_option("--depth", options->bench.depth, "tokens before the first one decoded (default 0)")
      ->delimiter(',')
      ->check(whole_number<int64_t>(0));
  verb->add_option("--batch", options->bench.batch, "sequences decoded together (default 1)")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024));
  verb->add_option("--rounds", options->bench.rounds, "rounds, whose median counts (default 5)")
      ->check(CLI::Range(1, 1000));
  add_engine_common(*verb, options->common);
  verb->callback([options] {
    options->common.apply_to(options->bench.engine);
    const ModelBench result =
        in_context(options->bench.model.string(), [&] { return bench::bench_model(options->bench); });
    if (options->common.json)
      print_json(to_json(options->bench, result));
    else
      print(options->bench, result);
  });
}

}  // namespace quatrain
