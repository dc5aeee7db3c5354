// One task on one model: items, prompts, the engine, scores.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "engine/engine.h"
#include "eval/tasks/statistics.h"
#include "eval/tasks/task.h"
#include "text/tokenizer.h"

namespace quatrain {

struct TaskOptions {
  fs::path data;       // where the tasks' files lie
  int64_t limit = 0;   // items of the task, of each subject where there are several; 0: all
  int64_t shots = -1;  // answered items before each question; -1: the task's own number
  int64_t batch = 16;  // items that run together; scores do not depend on it
};

struct TaskResult {
  std::string model, task;
  std::vector<std::pair<std::string, Estimate>> metrics;   // by lm-eval's names; the first is the headline
  std::vector<std::pair<std::string, Estimate>> subjects;  // the headline of each
  int64_t items = 0, shots = 0;
  std::string file, sha256;            // of the items
  std::string shot_file, shot_sha256;  // where shots come from another file
  double seconds = 0;
  Json samples = Json::array();  // of each item: its log-likelihoods or text, gold, and how it scored

  /// All but the samples; errors that one item cannot have are null.
  Json to_json() const;
};

/// Accuracies are shares; "perplexity" is exp of the mean negative log-likelihood of an item, its error by
/// the delta method. Errors name file, line or item.
TaskResult run_task(Engine& engine, const Tokenizer& tokenizer, const Task& task, const TaskOptions& options);

}  // namespace quatrain
