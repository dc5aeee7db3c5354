// SentencePiece's precompiled character map (normalizer_spec.precompiled_charsmap): a double-array trie from
// source strings to their replacements, as used by nmt_nfkc.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quatrain {

class PrecompiledMap {
 public:
  /// `blob`: uint32 size of the trie in bytes, the trie's uint32 units (darts-clone), replacements ended by
  /// NUL. Throws when the sizes do not fit; a trie that points outside itself ends the lookup.
  PrecompiledMap(std::string_view blob, std::string_view where);

  /// The longest source at each position is replaced; the rest stays.
  std::string apply(std::string_view text) const;

 private:
  std::vector<uint32_t> units_;
  std::string replacements_;
};

/// Standard base64 with padding, as tokenizer.json stores the blob. Throws on other characters.
std::string base64_decode(std::string_view text, std::string_view where);
std::string base64_encode(std::string_view bytes);

}  // namespace quatrain
