// The one way an error travels: an exception whose text says what was wrong, where, and what to do.
//
// Parsers, pipelines and libtorch throw from many calls deep, so one exception type is the whole channel:
// `fail("{}: tensor {} ...", file, name)` throws, apps/quatrain prints the text and exits with 1.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace quatrain {

/// A failure the user can act on. what() is one sentence with file, tensor, layer or field.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Wrong use of the program (unknown flag value, missing argument): exit code 2.
class UsageError : public Error {
 public:
  using Error::Error;
};

template <typename... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...));
}

template <typename... Args>
[[noreturn]] void fail_usage(fmt::format_string<Args...> format, Args&&... args) {
  throw UsageError(fmt::format(format, std::forward<Args>(args)...));
}

/// Throws with the message unless the condition holds.
template <typename... Args>
void require(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) [[unlikely]]
    throw Error(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace quatrain
