// What every benchmark of operators is asked on its command line, and how it ends.
#pragma once

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace quatrain::bench {

struct BenchOptions {
  std::string shape = "smollm2";
  int threads = 0;  // 0: the physical cores
  int rounds = 7;
  double quantile = 0.5;  // of all timings; a small one on a machine that others use
};

/// Adds the options to `app`: --shape (one of `shapes`), --isa, --threads, --rounds, --quantile.
inline void add_bench_options(CLI::App& app, BenchOptions& options, const std::vector<std::string>& shapes) {
  app.add_option("--shape", options.shape)->check(CLI::IsMember(shapes))->capture_default_str();
  app.add_option_function<std::string>(
      "--isa", [](const std::string& name) { setenv("QUATRAIN_ISA", name.c_str(), 1); });
  app.add_option("--threads", options.threads)->check(CLI::Range(1, 1024));
  app.add_option("--rounds", options.rounds)->check(CLI::Range(1, 1'000'000))->capture_default_str();
  app.add_option("--quantile", options.quantile)->check(CLI::Range(0.0, 1.0))->capture_default_str();
}

/// Parses the command line, then calls work(). The exit code: 0, 1 for an error of the work, CLI11's for a
/// wrong option.
template <typename Work>
int run_bench(CLI::App& app, int count, char** arguments, const Work& work) {
  CLI11_PARSE(app, count, arguments);
  try {
    work();
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}

}  // namespace quatrain::bench
