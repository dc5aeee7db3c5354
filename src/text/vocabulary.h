// The tokens of a vocabulary and the way back from a spelling to its id.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace quatrain {

class Vocabulary {
 public:
  /// Spellings by id. Empty spellings are holes. Of two equal spellings the lower id is found.
  explicit Vocabulary(std::vector<std::string> tokens);
  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;

  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }
  const std::string& text(int32_t id) const { return tokens_[static_cast<size_t>(id)]; }
  std::optional<int32_t> find(std::string_view text) const;

 private:
  std::vector<std::string> tokens_;
  std::unordered_map<std::string_view, int32_t> ids_;
};

/// "<0x0A>": the byte that a SentencePiece byte token stands for.
std::optional<uint8_t> byte_token(std::string_view text);
std::string byte_token_text(uint8_t byte);

}  // namespace quatrain
