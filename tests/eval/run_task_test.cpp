// Whole tasks over small committed files: items, shots, limits, metrics, reports.
#include "eval/tasks/run_task.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>

#include "engine/sampler.h"
#include "eval/tasks/items.h"
#include "eval/tasks/requests.h"
#include "prefix_engine.h"
#include "serve/byte_tokenizer.h"

namespace quatrain {
namespace {

class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / fmt::format("quatrain-tasks-{}", getpid())) {
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }
  /// The task reading a plain file instead of a packed one.
  Task put(std::string_view task, std::string_view text) const {
    Task made = find_task(task);
    made.file = made.name + ".jsonl";
    write_file(path_ / made.file, text);
    return made;
  }

 private:
  fs::path path_;
};

double logprob(const Tokenizer& tokenizer, const std::string& context, const std::string& continuation) {
  const ScoredRequest request = encode_request(tokenizer, context, continuation, 4096, "test");
  double sum = 0;
  for (size_t t = static_cast<size_t>(request.first); t < request.ids.size(); ++t)
    sum += log_probability(PrefixEngine::logits_after(std::span(request.ids).first(t), 300), request.ids[t]);
  return sum;
}

const char* const kQuestions =
    "{\"query\": \"Question: one?\", \"choices\": [\"a\", \"a long answer\", \"\xC3\xA9\xC3\xA9\"], "
    "\"gold\": 0}\n"
    "{\"query\": \"Question: two?\", \"choices\": [\"yes\", \"no, never\"], \"gold\": 1}\n\n"
    "{\"query\": \"Question: three?\", \"choices\": [\"b\", \"longer\", \"longest of all\"], \"gold\": 2}\n";

TEST(RunTask, ChoicesAreScoredByLikelihoodCharactersAndBytes) {
  const Folder folder;
  const Task task = folder.put("arc_easy", kQuestions);
  const auto tokenizer = byte_tokenizer();
  PrefixEngine engine;
  const TaskResult result = run_task(engine, *tokenizer, task, {.data = folder.path()});
  ASSERT_EQ(result.metrics.size(), 3u);
  EXPECT_EQ(result.items, 3);
  int64_t right[3] = {};
  size_t index = 0;
  for (const TaskItem& item : load_items(task, folder.path() / task.file).items) {
    double best[3] = {-1e9, -1e9, -1e9};
    int64_t chosen[3] = {};
    for (size_t c = 0; c < item.choices.size(); ++c) {
      const double value = logprob(*tokenizer, item.requests[c].context, item.requests[c].continuation);
      EXPECT_DOUBLE_EQ(result.samples[index]["logprobs"][c].get<double>(), value);
      const double length =
          item.choices[c] == "\xC3\xA9\xC3\xA9" ? 2 : static_cast<double>(item.choices[c].size());
      const double by[3] = {value, value / length, value / static_cast<double>(item.choices[c].size())};
      for (int m = 0; m < 3; ++m)
        if (by[m] > best[m]) best[m] = by[m], chosen[m] = static_cast<int64_t>(c);
    }
    for (int m = 0; m < 3; ++m) right[m] += chosen[m] == item.gold ? 1 : 0;
    ++index;
  }
  for (size_t m = 0; m < 3; ++m)
    EXPECT_DOUBLE_EQ(result.metrics[m].second.mean, static_cast<double>(right[m]) / 3);
  EXPECT_EQ(result.metrics[1].first, "acc_norm");
  EXPECT_EQ(result.to_json()["items_sha256"].get<std::string>().size(), 64u);
}

TEST(RunTask, ShotsStandBeforeTheQuestionAndNeverHoldIt) {
  const Folder folder;
  const Task task = folder.put("arc_easy", kQuestions);
  std::vector<TaskItem> pool = load_items(task, folder.path() / task.file).items;
  std::vector<TaskItem> items = pool;
  add_shots(items, pool, 2, "arc_easy");
  EXPECT_EQ(items[0].requests[1].context,
            "Question: two?\nAnswer: no, never\n\nQuestion: three?\nAnswer: longest of all\n\n"
            "Question: one?\nAnswer:");
  EXPECT_EQ(items[2].requests[0].context,
            "Question: one?\nAnswer: a\n\nQuestion: two?\nAnswer: no, never\n\nQuestion: three?\nAnswer:");
  EXPECT_THROW(add_shots(pool, pool, 3, "arc_easy"), Error);
}

TEST(RunTask, MmluTakesShotsAndLimitsBySubject) {
  const Folder folder;
  Task task = folder.put("mmlu", "");
  task.shot_file = "dev.jsonl";
  std::string test, dev;
  for (const char* subject : {"us_foreign_policy", "anatomy"}) {
    for (int i = 0; i < 5; ++i) {
      const std::string row = fmt::format(
          R"({{"subject": "{}", "question": "{} {}?", "choices": ["w", "x", "y", "z"], "answer": {}}})",
          subject, subject, i, i % 4);
      test += row + "\n";
      dev += row + "\n";
    }
  }
  write_file(folder.path() / task.file, test);
  write_file(folder.path() / task.shot_file, dev);
  auto items = limit_items(load_items(task, folder.path() / task.file).items, 2);
  ASSERT_EQ(items.size(), 4u);
  EXPECT_EQ(items[2].subject, "anatomy");
  add_shots(items, load_items(task, folder.path() / task.shot_file).items, 1, "mmlu");
  EXPECT_EQ(items[3].requests[0].context,
            "The following are multiple choice questions (with answers) about anatomy.\n\n"
            "anatomy 0?\nA. w\nB. x\nC. y\nD. z\nAnswer: A\n\n"
            "anatomy 1?\nA. w\nB. x\nC. y\nD. z\nAnswer:");

  PrefixEngine engine;
  const auto tokenizer = byte_tokenizer();
  const TaskResult result =
      run_task(engine, *tokenizer, task, {.data = folder.path(), .limit = 3, .shots = 4});
  EXPECT_EQ(result.items, 6);
  ASSERT_EQ(result.subjects.size(), 2u);
  EXPECT_DOUBLE_EQ(result.metrics[0].second.mean,
                   (result.subjects[0].second.mean + result.subjects[1].second.mean) / 2);
  const Json json = result.to_json();
  EXPECT_EQ(json["fewshot"], 4);
  EXPECT_EQ(json["subjects"]["anatomy"]["n"], 3);
  EXPECT_EQ(json["shots"], "dev.jsonl");
}

TEST(RunTask, LambadaGivesAccuracyAndPerplexity) {
  const Folder folder;
  const Task task = folder.put("lambada_openai",
                               "{\"context\": \"the cat and the\", \"continuation\": \"dog\"}\n"
                               "{\"context\": \"one, two,\", \"continuation\": \"three\"}\n");
  PrefixEngine engine;
  const auto tokenizer = byte_tokenizer();
  const TaskResult result = run_task(engine, *tokenizer, task, {.data = folder.path()});
  const double first = logprob(*tokenizer, "the cat and the", " dog");
  const double second = logprob(*tokenizer, "one, two,", " three");
  EXPECT_EQ(result.metrics[1].first, "perplexity");
  EXPECT_NEAR(std::log(result.metrics[1].second.mean), -(first + second) / 2, 1e-9);
  EXPECT_DOUBLE_EQ(result.metrics[0].second.mean, 0);
}

TEST(RunTask, GeneratedNumbersAreMatched) {
  const Folder folder;
  const Task task = folder.put("gsm8k",
                               "{\"question\": \"1 + 1?\", \"answer\": \"So.\\n#### 2\"}\n"
                               "{\"question\": \"2 + 2?\", \"answer\": \"So.\\n#### 4\"}\n");
  PrefixEngine engine(128);
  const auto tokenizer = byte_tokenizer();
  const TaskResult result = run_task(engine, *tokenizer, task, {.data = folder.path(), .shots = 1});
  EXPECT_EQ(result.metrics[0].first, "exact_match_strict");
  EXPECT_DOUBLE_EQ(result.metrics[0].second.mean, 0);  // noise has no "#### "
  EXPECT_EQ(result.samples.size(), 2u);
  PrefixEngine narrow(128, 200);
  EXPECT_THROW(run_task(narrow, *tokenizer, task, {.data = folder.path(), .shots = 1}), Error);
}

TEST(RunTask, BadFilesAreRefusedByLine) {
  const Folder folder;
  const auto error = [&](std::string_view text) -> std::string {
    const Task task = folder.put("arc_easy", text);
    try {
      load_items(task, folder.path() / task.file);
    } catch (const Error& caught) {
      return caught.what();
    }
    return "no error";
  };
  EXPECT_NE(error("").find("no items"), std::string::npos);
  EXPECT_NE(error("\n \n").find("no items"), std::string::npos);
  EXPECT_NE(error(std::string(kQuestions) + "{\"query\"").find("line 5"), std::string::npos);
  EXPECT_NE(error("{\"query\": \"\xFF\"}").find("line 1: invalid UTF-8"), std::string::npos);
  EXPECT_NE(error(std::string(1000, '[')).find("line 1"), std::string::npos);
  EXPECT_THROW(load_items(find_task("piqa"), folder.path() / "none.jsonl"), Error);
  EXPECT_THROW(task_data_directory("/no/such/folder"), UsageError);
}

TEST(Statistics, FollowTheTextbook) {
  const Estimate estimate = estimate_mean(std::vector<double>{1, 0, 1, 1});
  EXPECT_DOUBLE_EQ(estimate.mean, 0.75);
  EXPECT_NEAR(estimate.error, 0.25, 1e-12);  // sqrt(0.75 / 3 / 4)
  EXPECT_TRUE(std::isnan(estimate_mean(std::vector<double>{1}).error));
  const Estimate other = estimate_mean(std::vector<double>{0, 1});
  const Estimate both = pool(std::vector<Estimate>{estimate, other});
  EXPECT_NEAR(both.mean, 4.0 / 6, 1e-12);
  // sums of squares 0.75 and 0.5 within the groups, 6 - 2 degrees of freedom, 6 items
  EXPECT_NEAR(both.error, std::sqrt((0.75 + 0.5) / 4 / 6), 1e-12);
  EXPECT_NEAR(pool(std::vector<Estimate>{estimate}).error, estimate.error, 1e-12);
}

}  // namespace
}  // namespace quatrain
