// Large fixtures that do not lie in the tree: the folder named by QUATRAIN_SHARED, by default ../shared.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <optional>

/// Absent when the machine does not have them; tests that need them then skip.
inline std::optional<std::filesystem::path> shared_dir() {
  const char* named = std::getenv("QUATRAIN_SHARED");
  const std::filesystem::path path =
      named != nullptr ? std::filesystem::path(named) : std::filesystem::path(QUATRAIN_SOURCE_DIR) / ".." / "shared";
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return path;
  return std::nullopt;
}
