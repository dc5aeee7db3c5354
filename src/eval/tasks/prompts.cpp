#include "eval/tasks/prompts.h"

#include <algorithm>

#include "base/error.h"
#include "text/utf8.h"

namespace quatrain {
namespace {

struct Choices {
  std::vector<std::string> texts;
  int64_t gold = 0;
};

Choices read_choices(const Json& row, std::string_view gold_key, std::string_view where) {
  Choices choices{json_get<std::vector<std::string>>(row, "choices", where),
                  json_get<int64_t>(row, gold_key, where)};
  require(choices.texts.size() >= 2 && choices.texts.size() <= 26,
          "{}: field \"choices\" has {} entries; a question has 2 to 26", where, choices.texts.size());
  for (const std::string& text : choices.texts)
    require(!text.empty(), "{}: field \"choices\" has an empty entry", where);
  require(choices.gold >= 0 && choices.gold < std::ssize(choices.texts),
          "{}: field \"{}\" is {}, none of the {} choices", where, gold_key, choices.gold,
          choices.texts.size());
  return choices;
}

/// Each choice after the same context and a delimiter.
TaskItem choose(std::string context, Choices choices, std::string_view delimiter = " ") {
  TaskItem item;
  item.gold = choices.gold;
  for (const std::string& text : choices.texts)
    item.requests.push_back({context, std::string(delimiter) + text});
  item.choices = std::move(choices.texts);
  return item;
}

std::string_view strip(std::string_view text) {
  while (!text.empty() && is_white_space(utf8_at(text, 0).code)) text.remove_prefix(utf8_at(text, 0).size);
  for (;;) {
    size_t start = text.size();
    while (start > 0 && start + 3 > text.size() && (static_cast<uint8_t>(text[start - 1]) & 0xC0) == 0x80)
      --start;
    if (start == 0 || !is_white_space(utf8_at(text, start - 1).code)) return text;
    text = text.substr(0, start - 1);
  }
}

/// "A. first\nB. second\n...Answer:" behind a question; the letters are what is scored.
TaskItem choose_letter(std::string context, Choices choices) {
  Choices letters{{}, choices.gold};
  for (size_t i = 0; i < choices.texts.size(); ++i) {
    letters.texts.emplace_back(1, static_cast<char>('A' + i));
    context += "\n" + letters.texts.back() + ". " + choices.texts[i];
  }
  return choose(context + "\nAnswer:", std::move(letters));
}

bool is_lower(char c) {
  return c >= 'a' && c <= 'z';
}
char to_upper(char c) {
  return is_lower(c) ? static_cast<char>(c - 'a' + 'A') : c;
}
char to_lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

}  // namespace

TaskItem read_question(const Json& row, std::string_view where) {
  auto query = json_get<std::string>(row, "query", where);
  if (!query.ends_with('\n')) query += '\n';
  return choose(query + "Answer:", read_choices(row, "gold", where));
}

TaskItem read_hellaswag(const Json& row, std::string_view where) {
  auto query = json_get<std::string>(row, "query", where);
  const size_t end = query.find_last_of(".!?:");
  if (end != std::string::npos) {
    const size_t start = query.find_first_not_of(" )\"'", end + 1);
    if (start != std::string::npos && start > end + 1 && is_lower(query[start])) {
      query[start] = to_upper(query[start]);
      std::transform(query.begin() + static_cast<int64_t>(start) + 1, query.end(),
                     query.begin() + static_cast<int64_t>(start) + 1, to_lower);
    }
  }
  return choose(std::move(query), read_choices(row, "gold", where));
}

TaskItem read_winogrande(const Json& row, std::string_view where) {
  TaskItem item;
  const auto contexts = json_get<std::vector<std::string>>(row, "context_options", where);
  const auto continuation = json_get<std::string>(row, "continuation", where);
  item.gold = json_get<int64_t>(row, "gold", where);
  require(contexts.size() == 2 && (item.gold == 0 || item.gold == 1),
          "{}: fields \"context_options\" and \"gold\" are two texts and 0 or 1", where);
  require(!continuation.empty(), "{}: field \"continuation\" is empty", where);
  for (const std::string& context : contexts) item.requests.push_back({context, " " + continuation});
  item.choices = contexts;
  return item;
}

TaskItem read_boolq(const Json& row, std::string_view where) {
  auto query = json_get<std::string>(row, "query", where);
  constexpr std::string_view label = "Passage: ";
  if (query.starts_with(label)) query.erase(0, label.size());
  return choose(query + "\nAnswer:", read_choices(row, "gold", where));
}

TaskItem read_openbookqa(const Json& row, std::string_view where) {
  return choose(json_get<std::string>(row, "query", where), read_choices(row, "gold", where));
}

TaskItem read_copa(const Json& row, std::string_view where) {
  auto query = json_get<std::string>(row, "query", where);
  const size_t comma = query.rfind(',');
  if (comma != std::string::npos &&
      (query.substr(comma) == ", because" || query.substr(comma) == ", therefore"))
    query.erase(comma, 1);
  return choose(std::move(query), read_choices(row, "gold", where), "  ");
}

TaskItem read_social_iqa(const Json& row, std::string_view where) {
  return choose("Q: " + json_get<std::string>(row, "context", where) + " " +
                    json_get<std::string>(row, "question", where) + "\nA:",
                read_choices(row, "answer", where));
}

TaskItem read_commonsense_qa(const Json& row, std::string_view where) {
  const auto question = json_get<std::string>(row, "question", where);
  return choose_letter("Question: " + std::string(strip(question)), read_choices(row, "answer", where));
}

TaskItem read_mmlu(const Json& row, std::string_view where) {
  const auto question = json_get<std::string>(row, "question", where);
  TaskItem item = choose_letter(std::string(strip(question)), read_choices(row, "answer", where));
  item.subject = json_get<std::string>(row, "subject", where);
  std::string subject = item.subject;
  std::ranges::replace(subject, '_', ' ');
  item.description = "The following are multiple choice questions (with answers) about " + subject + ".\n\n";
  return item;
}

TaskItem read_lambada(const Json& row, std::string_view where) {
  TaskItem item;
  const auto word = json_get<std::string>(row, "continuation", where);
  require(!word.empty(), "{}: field \"continuation\" is empty", where);
  item.requests.push_back({json_get<std::string>(row, "context", where), " " + word});
  return item;
}

TaskItem read_gsm8k(const Json& row, std::string_view where) {
  TaskItem item;
  const auto answer = json_get<std::string>(row, "answer", where);
  require(answer.find("#### ") != std::string::npos, "{}: field \"answer\" does not end in \"#### NUMBER\"",
          where);
  item.requests.push_back(
      {"Question: " + json_get<std::string>(row, "question", where) + "\nAnswer:", " " + answer});
  return item;
}

}  // namespace quatrain
