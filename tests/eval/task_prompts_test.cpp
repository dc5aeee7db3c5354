// Prompts and extracted numbers against what lm-evaluation-harness makes of the same rows (make_prompts.py).
#include <gtest/gtest.h>

#include <set>

#include "eval/tasks/number_answer.h"
#include "eval/tasks/task.h"

namespace quatrain {
namespace {

Json golden() {
  return read_json(fs::path(QUATRAIN_SOURCE_DIR) / "tests/eval/data/prompts.json");
}

TEST(TaskPrompts, AreThoseOfLmEval) {
  std::set<std::string> seen;
  const Json all = golden();
  for (const Json& made : all["cases"]) {
    const auto name = made["task"].get<std::string>();
    seen.insert(name);
    const TaskItem item = find_task(name).read(made["row"], name);
    ASSERT_EQ(item.requests.size(), made["requests"].size()) << name;
    for (size_t i = 0; i < item.requests.size(); ++i) {
      EXPECT_EQ(item.requests[i].context, made["requests"][i][0].get<std::string>()) << name;
      EXPECT_EQ(item.requests[i].continuation, made["requests"][i][1].get<std::string>()) << name;
    }
    EXPECT_EQ(item.gold, made["gold"].get<int64_t>()) << name;
    EXPECT_EQ(item.description, made.value("description", "")) << name;
  }
  EXPECT_EQ(seen.size(), tasks().size()) << "a task without a row in prompts.json";
}

TEST(TaskPrompts, BadRowsNameTheField) {
  const auto error = [](const char* task, const char* row) -> std::string {
    try {
      find_task(task).read(parse_json(row, "row"), "qa.jsonl, line 7");
    } catch (const Error& caught) {
      return caught.what();
    }
    return "no error";
  };
  EXPECT_EQ(error("arc_easy", R"({"choices": ["a", "b"], "gold": 0})"),
            "qa.jsonl, line 7: field \"query\" is missing");
  EXPECT_EQ(error("arc_easy", R"({"query": "q", "choices": ["a", "b"], "gold": 2})"),
            "qa.jsonl, line 7: field \"gold\" is 2, none of the 2 choices");
  EXPECT_NE(error("arc_easy", R"({"query": "q", "choices": ["a", ""], "gold": 0})").find("empty"),
            std::string::npos);
  EXPECT_NE(
      error("mmlu", R"({"subject": "s", "question": "q", "choices": [], "answer": 0})").find("0 entries"),
      std::string::npos);
  EXPECT_NE(error("piqa", R"([1])").find("\"query\""), std::string::npos);
  EXPECT_NE(error("winogrande", R"({"context_options": ["a"], "continuation": "c", "gold": 0})").find("two"),
            std::string::npos);
  EXPECT_NE(error("lambada_openai", R"({"context": "a", "continuation": ""})").find("empty"),
            std::string::npos);
  EXPECT_NE(error("gsm8k", R"({"question": "a", "answer": "4"})").find("####"), std::string::npos);
  EXPECT_NE(error("copa", R"({"query": 3, "choices": ["a", "b"], "gold": 0})").find("wrong type"),
            std::string::npos);
  EXPECT_THROW(find_task("arc"), UsageError);
}

TEST(NumberAnswer, FindsWhatLmEvalFinds) {
  const Json all = golden();
  for (const Json& made : all["numbers"]) {
    const auto text = made["text"].get<std::string>(), gold = made["gold"].get<std::string>();
    EXPECT_EQ(strict_number(text), made["strict"].get<std::string>()) << text;
    EXPECT_EQ(flexible_number(text), made["flexible"].get<std::string>()) << text;
    EXPECT_EQ(same_number(strict_number(text), gold), made["matches"][0].get<bool>()) << text;
    EXPECT_EQ(same_number(flexible_number(text), gold), made["matches"][1].get<bool>()) << text;
  }
}

}  // namespace
}  // namespace quatrain
