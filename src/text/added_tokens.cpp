#include "text/added_tokens.h"

#include <utf8proc.h>

#include <algorithm>

#include "text/utf8.h"

namespace quatrain {
namespace {

size_t character_before(std::string_view text, size_t at) {
  do --at;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
  return at;
}

// \w of Unicode's regular expressions (UTS 18): letters, marks, digits, connectors.
bool is_word(int32_t code) {
  if (code < 0) return false;
  switch (utf8proc_category(code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

bool inside_word(std::string_view text, size_t begin, size_t end) {
  const bool before = begin > 0 && is_word(utf8_at(text, character_before(text, begin)).code);
  const bool after = end < text.size() && is_word(utf8_at(text, end).code);
  return before || after;
}

size_t white_space_before(std::string_view text, size_t at, size_t limit) {
  while (at > limit) {
    const size_t previous = character_before(text, at);
    if (!is_white_space(utf8_at(text, previous).code)) break;
    at = previous;
  }
  return std::max(at, limit);
}

size_t white_space_after(std::string_view text, size_t at) {
  while (at < text.size()) {
    const Utf8Char character = utf8_at(text, at);
    if (!is_white_space(character.code)) break;
    at += character.size;
  }
  return at;
}

}  // namespace

AddedTokens::AddedTokens(const std::vector<AddedToken>& tokens, bool normalized,
                         const Normalizer& normalizer) {
  for (const AddedToken& token : tokens) {
    if (token.normalized != normalized) continue;
    const std::string text = normalized ? normalizer.apply(token.content, false) : token.content;
    if (text.empty()) continue;
    first_bytes_[static_cast<uint8_t>(text[0])] = true;
    trie_.add(text, static_cast<int32_t>(tokens_.size()));
    tokens_.push_back(token);
  }
}

const AddedToken* AddedTokens::longest_at(std::string_view text, size_t at, bool special,
                                          size_t& size) const {
  const AddedToken* longest = nullptr;
  trie_.prefixes(text.substr(at), [&](size_t matched, int32_t index) {
    const AddedToken& token = tokens_[static_cast<size_t>(index)];
    if (token.special && !special) return;
    if (token.single_word && inside_word(text, at, at + matched)) return;
    longest = &token;
    size = matched;
  });
  return longest;
}

std::vector<AddedTokens::Part> AddedTokens::split(std::string_view text, bool special) const {
  std::vector<Part> parts;
  size_t done = 0;
  for (size_t at = 0; at < text.size() && !tokens_.empty();) {
    size_t size = 0;
    const AddedToken* token =
        first_bytes_[static_cast<uint8_t>(text[at])] ? longest_at(text, at, special, size) : nullptr;
    if (token == nullptr) {
      ++at;
      continue;
    }
    const size_t begin = token->lstrip ? white_space_before(text, at, done) : at;
    const size_t end = token->rstrip ? white_space_after(text, at + size) : at + size;
    if (begin > done) parts.push_back({done, begin, -1});
    parts.push_back({begin, end, token->id});
    at = done = end;
  }
  if (done < text.size()) parts.push_back({done, text.size(), -1});
  return parts;
}

}  // namespace quatrain
