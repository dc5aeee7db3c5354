// The tasks that `quatrain eval --task` knows: which file, which prompt, which score.
//
// Prompts and scores are those of lm-evaluation-harness, so that figures can stand beside published ones;
// docs/evaluation.md says where a data file forces a difference.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace quatrain {

/// Changes with any change of a prompt or a score, so that old figures are not put beside new ones.
constexpr int kTaskPromptsVersion = 1;

/// One question, as the model reads it.
struct TaskItem {
  struct Request {
    std::string context, continuation;  // the continuation begins with its delimiter
  };
  std::string subject;            // of tasks that have several
  std::string description;        // before the shots
  std::vector<Request> requests;  // one a choice; cloze: the one right answer; generation: the answer's text
  std::vector<std::string> choices;  // their texts without delimiter, which acc_norm divides by
  int64_t gold = 0;

  /// The item with its answer, as a shot before another one.
  std::string shot() const;
};

struct Task {
  enum class Kind {
    Choice,    // the most likely continuation: acc, and divided by its length acc_norm and acc_bytes
    Cloze,     // whether greedy decoding gives the continuation, and its perplexity
    Generate,  // a number at the end of generated text
  };
  std::string name;
  std::string file;       // in the data directory
  std::string shot_file;  // empty: shots are the first other items of `file`
  Kind kind = Kind::Choice;
  int64_t shots = 0;       // unless asked otherwise
  bool by_length = false;  // whether acc_norm and acc_bytes are reported too
  std::function<TaskItem(const Json& row, std::string_view where)> read;
};

/// All tasks in the order of the documentation.
const std::vector<Task>& tasks();
/// An unknown name is a UsageError that lists the known ones.
const Task& find_task(std::string_view name);

}  // namespace quatrain
