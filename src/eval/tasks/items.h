// The items of a task: rows of a JSON-lines file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/file.h"
#include "eval/tasks/task.h"

namespace quatrain {

struct TaskItems {
  std::vector<TaskItem> items;
  std::string file, sha256;  // of the unpacked bytes
};

/// All rows of `file` (unpacked where it ends in .gz). Errors name file and line.
TaskItems load_items(const Task& task, const fs::path& file);

/// The first `limit` items (0: all), of each subject where there are several, as lm-eval limits subtasks.
std::vector<TaskItem> limit_items(std::vector<TaskItem> items, int64_t limit);

/// Puts the description and `shots` answered items before every context. Shots come from `pool` in its order:
/// those of the item's subject, and never the item itself. Too few of them is an error.
void add_shots(std::vector<TaskItem>& items, const std::vector<TaskItem>& pool, int64_t shots,
               const std::string& where);

/// `--data`, else $QUATRAIN_SHARED/data/qa. A UsageError where neither is a directory.
fs::path task_data_directory(const std::string& flag);

}  // namespace quatrain
