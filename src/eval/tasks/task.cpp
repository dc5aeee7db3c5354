#include "eval/tasks/task.h"

#include <algorithm>

#include "base/error.h"
#include "eval/tasks/prompts.h"

namespace quatrain {

std::string TaskItem::shot() const {
  const Request& right = requests.at(requests.size() == 1 ? 0 : static_cast<size_t>(gold));
  return right.context + right.continuation + "\n\n";
}

const std::vector<Task>& tasks() {
  using enum Task::Kind;
  static const std::vector<Task> all = {
      {"arc_easy", "arc_easy.jsonl.gz", "", Choice, 0, true, read_question},
      {"arc_challenge", "arc_challenge.jsonl.gz", "", Choice, 0, true, read_question},
      {"hellaswag", "hellaswag.jsonl.gz", "", Choice, 0, true, read_hellaswag},
      {"piqa", "piqa.jsonl.gz", "", Choice, 0, true, read_question},
      {"winogrande", "winogrande.jsonl.gz", "", Choice, 0, false, read_winogrande},
      {"boolq", "boolq.jsonl.gz", "", Choice, 0, false, read_boolq},
      {"openbookqa", "openbook_qa.jsonl.gz", "", Choice, 0, true, read_openbookqa},
      {"social_iqa", "social_iqa.jsonl.gz", "", Choice, 0, false, read_social_iqa},
      {"commonsense_qa", "commonsense_qa.jsonl.gz", "", Choice, 0, false, read_commonsense_qa},
      {"copa", "copa.jsonl.gz", "", Choice, 0, false, read_copa},
      {"lambada_openai", "lambada_openai.jsonl.gz", "", Cloze, 0, false, read_lambada},
      {"mmlu", "mmlu_test.jsonl.gz", "mmlu_dev.jsonl.gz", Choice, 0, false, read_mmlu},
      {"gsm8k", "gsm8k_test.jsonl.gz", "", Generate, 5, false, read_gsm8k},
  };
  return all;
}

const Task& find_task(std::string_view name) {
  const auto found = std::ranges::find(tasks(), name, &Task::name);
  if (found != tasks().end()) return *found;
  std::string names;
  for (const Task& task : tasks()) names += (names.empty() ? "" : ", ") + task.name;
  fail_usage("task: \"{}\" is none of {}", name, names);
}

}  // namespace quatrain
