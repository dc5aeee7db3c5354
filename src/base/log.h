// Log lines on stderr, so that stdout stays the program's answer. Level: QUATRAIN_LOG=debug|info|warn|error.
#pragma once

#include <spdlog/spdlog.h>

#include <cstdio>

namespace quatrain {

/// Routes spdlog to stderr and reads QUATRAIN_LOG. Called once by main.
void init_logging();

/// A line's text on stderr, for the terminal; nothing happens where that cannot be written (fmt::print would
/// throw, and end work that has nothing to do with it).
template <typename... Args>
void print_note(fmt::format_string<Args...> format, Args&&... args) {
  std::fputs(fmt::format(format, std::forward<Args>(args)...).c_str(), stderr);
}

template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  spdlog::info(format, std::forward<Args>(args)...);
}

template <typename... Args>
void log_warn(fmt::format_string<Args...> format, Args&&... args) {
  spdlog::warn(format, std::forward<Args>(args)...);
}

template <typename... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  spdlog::debug(format, std::forward<Args>(args)...);
}

}  // namespace quatrain
