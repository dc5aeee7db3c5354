#include "eval/tasks/run_task.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>

#include "base/error.h"
#include "base/progress.h"
#include "eval/tasks/continuation_scorer.h"
#include "eval/tasks/greedy_text.h"
#include "eval/tasks/items.h"
#include "eval/tasks/number_answer.h"
#include "eval/tasks/requests.h"
#include "text/utf8.h"

namespace quatrain {
namespace {

constexpr int64_t kGeneratedTokens = 256;

/// Values of one metric, one an item.
using Metrics = std::vector<std::pair<std::string, std::vector<double>>>;

struct Scored {
  Metrics metrics;
  Json samples = Json::array();
};

int64_t characters(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; });
}

/// The first largest of score / length.
template <typename Length>
int64_t best(const std::vector<ContinuationScore>& scores, Length length) {
  int64_t best = 0;
  double most = -std::numeric_limits<double>::infinity();
  for (int64_t i = 0; i < std::ssize(scores); ++i) {
    const double value = scores[static_cast<size_t>(i)].logprob / length(static_cast<size_t>(i));
    if (value > most) best = i, most = value;
  }
  return best;
}

std::vector<std::vector<ContinuationScore>> score_items(Engine& engine, const Tokenizer& tokenizer,
                                                        const Task& task, const std::vector<TaskItem>& items,
                                                        int64_t batch) {
  std::vector<std::vector<ScoredRequest>> requests;
  for (const TaskItem& item : items) {
    const std::string where = fmt::format("{}, item {}", task.name, requests.size());
    auto& list = requests.emplace_back();
    for (const auto& [context, continuation] : item.requests)
      list.push_back(encode_request(tokenizer, context, continuation, engine.context(), where));
  }
  Progress progress(task.name, std::ssize(items));
  return score_continuations(engine, requests, batch, [&](int64_t done) { progress.update(done); });
}

Scored score_choices(Engine& engine, const Tokenizer& tokenizer, const Task& task,
                     const std::vector<TaskItem>& items, int64_t batch) {
  const auto scores = score_items(engine, tokenizer, task, items, batch);
  Scored scored{{{"acc", {}}}};
  if (task.by_length) scored.metrics = {{"acc", {}}, {"acc_norm", {}}, {"acc_bytes", {}}};
  for (size_t i = 0; i < items.size(); ++i) {
    const TaskItem& item = items[i];
    const int64_t chosen[] = {
        best(scores[i], [](size_t) { return 1.0; }),
        best(scores[i], [&](size_t c) { return static_cast<double>(characters(item.choices[c])); }),
        best(scores[i], [&](size_t c) { return static_cast<double>(item.choices[c].size()); })};
    for (size_t m = 0; m < scored.metrics.size(); ++m)
      scored.metrics[m].second.push_back(chosen[m] == item.gold ? 1 : 0);
    Json logprobs = Json::array();
    for (const ContinuationScore& score : scores[i]) logprobs.push_back(score.logprob);
    scored.samples.push_back({{"logprobs", logprobs}, {"gold", item.gold}, {"chosen", chosen[0]}});
  }
  return scored;
}

Scored score_cloze(Engine& engine, const Tokenizer& tokenizer, const Task& task,
                   const std::vector<TaskItem>& items, int64_t batch) {
  const auto scores = score_items(engine, tokenizer, task, items, batch);
  Scored scored{{{"acc", {}}, {"perplexity", {}}}};
  for (const auto& score : scores) {
    scored.metrics[0].second.push_back(score[0].greedy ? 1 : 0);
    scored.metrics[1].second.push_back(score[0].logprob);
    scored.samples.push_back({{"logprobs", {score[0].logprob}}, {"greedy", score[0].greedy}});
  }
  return scored;
}

Scored score_generated(Engine& engine, const Tokenizer& tokenizer, const Task& task,
                       const std::vector<TaskItem>& items, int64_t batch) {
  static const std::vector<std::string> stops = {"Question:", "</s>", "<|im_end|>"};
  require(engine.context() > kGeneratedTokens,
          "{}: the model's context of {} leaves no room for {} generated tokens", task.name, engine.context(),
          kGeneratedTokens);
  std::vector<std::vector<int32_t>> prompts;
  for (const TaskItem& item : items)
    prompts.push_back(
        encode_prompt(tokenizer, item.requests[0].context, engine.context() - kGeneratedTokens));
  Progress progress(task.name, std::ssize(items));
  const auto texts = continue_greedily(engine, tokenizer, prompts, kGeneratedTokens, stops, batch,
                                       [&](int64_t done) { progress.update(done); });
  Scored scored{{{"exact_match_strict", {}}, {"exact_match_flexible", {}}}};
  for (size_t i = 0; i < items.size(); ++i) {
    const std::string& gold = items[i].requests[0].continuation;
    const std::string text = replace_invalid_utf8(texts[i]);
    const bool strict = same_number(strict_number(text), gold);
    const bool flexible = same_number(flexible_number(text), gold);
    scored.metrics[0].second.push_back(strict ? 1 : 0);
    scored.metrics[1].second.push_back(flexible ? 1 : 0);
    scored.samples.push_back({{"text", text}, {"strict", strict}, {"flexible", flexible}});
  }
  return scored;
}

Scored score_task(Engine& engine, const Tokenizer& tokenizer, const Task& task,
                  const std::vector<TaskItem>& items, int64_t batch) {
  switch (task.kind) {
    case Task::Kind::Choice:
      return score_choices(engine, tokenizer, task, items, batch);
    case Task::Kind::Cloze:
      return score_cloze(engine, tokenizer, task, items, batch);
    case Task::Kind::Generate:
      return score_generated(engine, tokenizer, task, items, batch);
  }
  fail("{}: no such kind of task", task.name);
}

/// exp of minus the mean, the error by the delta method.
Estimate to_perplexity(const Estimate& logprob) {
  const double value = std::exp(-logprob.mean);
  return {value, value * logprob.error, logprob.count};
}

void summarize(const Scored& scored, const std::vector<TaskItem>& items, TaskResult& result) {
  std::map<std::string, std::vector<size_t>> subjects;
  for (size_t i = 0; i < items.size(); ++i) subjects[items[i].subject].push_back(i);
  for (const auto& [name, values] : scored.metrics) {
    std::vector<Estimate> groups;
    for (const auto& [subject, members] : subjects) {
      std::vector<double> own;
      for (const size_t member : members) own.push_back(values[member]);
      groups.push_back(estimate_mean(own));
      if (result.metrics.empty() && subjects.size() > 1) result.subjects.emplace_back(subject, groups.back());
    }
    const Estimate all = pool(groups);
    result.metrics.emplace_back(name, name == "perplexity" ? to_perplexity(all) : all);
  }
}

Json number(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

}  // namespace

Json TaskResult::to_json() const {
  Json json = {{"model", model}, {"task", task},           {"prompts", kTaskPromptsVersion},
               {"n", items},     {"fewshot", shots},       {"engine", "native"},
               {"items", file},  {"items_sha256", sha256}, {"seconds", seconds}};
  if (!shot_file.empty()) json["shots"] = shot_file, json["shots_sha256"] = shot_sha256;
  for (const auto& [name, estimate] : metrics) {
    json[name] = number(estimate.mean);
    json[name + "_stderr"] = number(estimate.error);
  }
  json["stderr"] = number(metrics.at(0).second.error);
  for (const auto& [subject, estimate] : subjects)
    json["subjects"][subject] = {
        {metrics[0].first, number(estimate.mean)}, {"stderr", number(estimate.error)}, {"n", estimate.count}};
  return json;
}

TaskResult run_task(Engine& engine, const Tokenizer& tokenizer, const Task& task,
                    const TaskOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  TaskResult result;
  result.task = task.name;
  result.shots = options.shots >= 0 ? options.shots : task.shots;
  const fs::path file = options.data / task.file;
  TaskItems loaded = load_items(task, file);
  result.file = loaded.file;
  result.sha256 = loaded.sha256;
  std::vector<TaskItem> pool;
  if (result.shots > 0 && !task.shot_file.empty()) {
    TaskItems shots = load_items(task, options.data / task.shot_file);
    result.shot_file = shots.file;
    result.shot_sha256 = shots.sha256;
    pool = std::move(shots.items);
  } else if (result.shots > 0) {
    pool = loaded.items;
  }
  std::vector<TaskItem> items = limit_items(std::move(loaded.items), options.limit);
  add_shots(items, pool, result.shots, task.name);
  result.items = std::ssize(items);
  Scored scored = score_task(engine, tokenizer, task, items, std::max<int64_t>(options.batch, 1));
  summarize(scored, items, result);
  result.samples = std::move(scored.samples);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace quatrain
