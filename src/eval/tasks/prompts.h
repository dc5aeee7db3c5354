// Rows of the data files to prompts, by the templates of lm-evaluation-harness 0.4.
//
// `where` (file and line) begins every error: a field that is missing or mistyped, a gold answer that is none
// of the choices.
#pragma once

#include <string_view>

#include "base/json.h"
#include "eval/tasks/task.h"

namespace quatrain {

/// {"query": "Question: ...", "choices", "gold"} of ARC and PIQA: the query, "Answer:", each choice.
TaskItem read_question(const Json& row, std::string_view where);
/// {"query": "ACTIVITY: CONTEXT", "choices", "gold"}: the beginning of the sentence to be finished gets a
/// capital, as lm-eval gives its second part of the context.
TaskItem read_hellaswag(const Json& row, std::string_view where);
/// {"context_options", "continuation", "gold"}: partial scoring, the same continuation after each context.
TaskItem read_winogrande(const Json& row, std::string_view where);
/// {"query": "Passage: ...\nQuestion: ...", "choices": ["no", "yes"], "gold"}.
TaskItem read_boolq(const Json& row, std::string_view where);
/// {"query", "choices", "gold"}: the bare query.
TaskItem read_openbookqa(const Json& row, std::string_view where);
/// {"query": "PREMISE, because" or "PREMISE, therefore", "choices", "gold"}. lm-eval writes no comma there
/// and puts two spaces before the choice.
TaskItem read_copa(const Json& row, std::string_view where);
/// {"context", "question", "choices", "answer"}.
TaskItem read_social_iqa(const Json& row, std::string_view where);
/// {"question", "choices", "answer"}: the choices are listed, the letter is scored.
TaskItem read_commonsense_qa(const Json& row, std::string_view where);
/// {"subject", "question", "choices", "answer"}: the same under a line that names the subject.
TaskItem read_mmlu(const Json& row, std::string_view where);
/// {"context", "continuation"}: the last word.
TaskItem read_lambada(const Json& row, std::string_view where);
/// {"question", "answer"}: the answer's reasoning ends in "#### NUMBER".
TaskItem read_gsm8k(const Json& row, std::string_view where);

}  // namespace quatrain
