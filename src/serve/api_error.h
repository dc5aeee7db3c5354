// Errors in OpenAI's shape: {"error": {"message", "type", "param", "code"}} with an HTTP status.
#pragma once

#include <string>
#include <utility>

#include "base/error.h"
#include "base/json.h"

namespace quatrain {

class ApiError : public Error {
 public:
  ApiError(int status, std::string type, std::string code, const std::string& message, std::string param = {})
      : Error(message),
        status(status),
        type(std::move(type)),
        code(std::move(code)),
        param(std::move(param)) {}

  Json to_json() const;

  int status;
  std::string type, code, param;
  int retry_after = 0;  // seconds; 0: no such header
};

/// 400 for the field `param`.
template <typename... Args>
[[noreturn]] void fail_field(const std::string& param, fmt::format_string<Args...> format, Args&&... args) {
  throw ApiError(400, "invalid_request_error", "invalid_value",
                 fmt::format(format, std::forward<Args>(args)...), param);
}

/// 400: a feature that this server, or the model's template, does not have.
template <typename... Args>
[[noreturn]] void fail_unsupported(const std::string& param, fmt::format_string<Args...> format,
                                   Args&&... args) {
  throw ApiError(400, "invalid_request_error", "unsupported_value",
                 fmt::format(format, std::forward<Args>(args)...), param);
}

/// What a client is told about the exception that is being handled.
ApiError describe_current_exception();

/// JSON as bytes that are valid UTF-8 whatever the strings hold.
std::string dump_json(const Json& json);

}  // namespace quatrain
