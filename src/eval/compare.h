// Recipes side by side: each quantised, evaluated and kept, so that a run that was interrupted goes on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/file.h"
#include "eval/perplexity.h"
#include "eval/report/comparison.h"
#include "eval/tasks/run_task.h"

namespace quatrain {

struct CompareOptions {
  fs::path model;                    // 16 bit; the first row of the comparison
  std::vector<std::string> recipes;  // shipped recipes, recipe files, or artifacts that exist already
  std::vector<Protocol> protocols;   // each over each text
  std::vector<std::string> texts;
  int64_t windows = 0;  // of each text; 0: all
  std::vector<std::string> tasks;
  TaskOptions task_options;
  bool jump_ratio = true;  // measure DynamicPTQ's curves (in programs with libtorch)
  int threads = 0;
  std::string device = "cpu";  // of quantising and of the evaluation
  uint64_t max_ram = 0;        // bytes, as of QuantizeOptions
  std::string program;         // version of the program: rows of another one are made again
};

/// Measures the model and each recipe. Below `output`, artifacts/NAME holds what was quantised and
/// rows/NAME.json what was measured. An artifact is used again while the model's fingerprint, the recipe and
/// the program are those that it was made of; a row, while also texts, protocols, windows, tasks and their
/// files are. Whatever else lies under these names is made again. A recipe that fails becomes one of the
/// comparison's failures; a model that does is an error, and two rows of one name are a UsageError.
Comparison compare(const CompareOptions& options, const fs::path& output);

/// Writes comparison.json, comparison.csv and report.html into `output`.
void write_comparison(const Comparison& comparison, const fs::path& output);

}  // namespace quatrain
