// Log lines on stderr, so that stdout stays the program's answer. Level: QUATRAIN_LOG=debug|info|warn|error.
#pragma once

#include <spdlog/spdlog.h>

namespace quatrain {

/// Routes spdlog to stderr and reads QUATRAIN_LOG. Called once by main.
void init_logging();

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
