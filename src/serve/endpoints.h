// The API's paths. Each takes the JSON body of a request and fills the response, or throws.
#pragma once

#include <httplib.h>

#include "base/json.h"
#include "serve/service.h"

namespace quatrain {

/// POST /v1/chat/completions
void chat_completions(Service& service, const OrderedJson& body, httplib::Response& response);
/// POST /v1/completions
void completions(Service& service, const OrderedJson& body, httplib::Response& response);
/// POST /tokenize: {"prompt", "add_special_tokens"} or {"messages"} -> {"tokens", "count", "max_model_len"}
void tokenize(Service& service, const OrderedJson& body, httplib::Response& response);
/// POST /detokenize: {"tokens"} -> {"prompt"}
void detokenize(Service& service, const OrderedJson& body, httplib::Response& response);

/// GET /tokenizer_info: {"bos_token", "eos_token", "chat_template"}, for clients that encode text themselves.
void tokenizer_info(Service& service, httplib::Response& response);

}  // namespace quatrain
