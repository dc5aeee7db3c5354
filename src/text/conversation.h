// A conversation as the variables of a chat template: what run, template and serve share.
#pragma once

#include "base/json.h"
#include "text/tokenizer.h"

namespace quatrain {

/// The variables that transformers' apply_chat_template gives a template: messages, tools (null without any),
/// documents (null), add_generation_prompt, and bos_token and eos_token where the tokenizer has them.
///
/// `messages`: an array of objects, each with a string `role`. `content` is a string, null, or an array of
/// objects with a string `type` (and a string `text` where the type is "text"); it may be missing only beside
/// `tool_calls`, an array of objects. `tools`: null or an array of objects. Anything else is an error that
/// names the place: "messages[2].content ...".
OrderedJson chat_context(const Tokenizer& tokenizer, OrderedJson messages, OrderedJson tools,
                         bool add_generation_prompt);

}  // namespace quatrain
