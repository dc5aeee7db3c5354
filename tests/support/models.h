// Real models: what scripts/fetch-model put into models/ (or the folder that QUATRAIN_MODELS names).
#pragma once

#include <cstdlib>
#include <filesystem>
#include <optional>

/// Absent before scripts/fetch-model ran; tests that need it then skip.
inline std::optional<std::filesystem::path> smollm2() {
  const char* named = std::getenv("QUATRAIN_MODELS");
  const std::filesystem::path folder =
      named != nullptr ? std::filesystem::path(named) : std::filesystem::path(QUATRAIN_SOURCE_DIR) / "models";
  std::filesystem::path file = folder / "SmolLM2-135M-Instruct.Q4_1.gguf";
  std::error_code error;
  if (std::filesystem::is_regular_file(file, error)) return file;
  return std::nullopt;
}
