// From the messages of a request to the tokens of a prompt.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "serve/request_fields.h"
#include "serve/service.h"

namespace quatrain {

/// The prompt's text by the model's template. `tools`: null or a list. Errors name the field.
std::string render_chat(const RequestFields& fields, const Service& service, const OrderedJson& tools);

/// Its tokens.
std::vector<int32_t> chat_prompt(const RequestFields& fields, const Service& service,
                                 const OrderedJson& tools);

}  // namespace quatrain
