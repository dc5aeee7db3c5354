#include "text/token_decoder.h"

#include "text/byte_level.h"
#include "text/vocabulary.h"

namespace quatrain {

TokenDecoder::TokenDecoder(const Json& description, const std::string& where) {
  add(description, where);
}

void TokenDecoder::add(const Json& description, const std::string& where) {
  if (description.is_null()) return;
  const auto type = json_get<std::string>(description, "type", where);
  if (type == "Sequence") {
    const auto parts = json_get<Json>(description, "decoders", where);
    require(parts.is_array(), "{}: \"decoders\" is not an array", where);
    for (const Json& part : parts) add(part, where);
  } else if (type == "ByteLevel") {
    byte_level_ = true;
  } else if (type == "ByteFallback") {
    byte_fallback_ = true;
  } else if (type == "Fuse") {
    // Tokens are always joined here.
  } else if (type == "Replace") {
    const auto pattern = json_get<Json>(description, "pattern", where);
    auto from = json_get<std::string>(pattern, "String", where + ": decoder Replace");
    require(!from.empty(), "{}: decoder Replace has an empty string as its pattern", where);
    replacements_.emplace_back(std::move(from), json_get<std::string>(description, "content", where));
  } else if (type == "Strip") {
    const auto content = json_get<std::string>(description, "content", where);
    const auto start = json_get<int64_t>(description, "start", where);
    const auto stop = json_get<int64_t>(description, "stop", where);
    require(content == " " && (start == 0 || start == 1) && stop == 0,
            "{}: decoder Strip is supported for one space at the start, not for \"{}\", {}, {}", where,
            content, start, stop);
    strips_leading_space_ = start == 1;
  } else if (type == "Metaspace") {
    const auto mark = json_get_or<std::string>(description, "replacement", "\u2581", where);
    require(!mark.empty(), "{}: decoder Metaspace has an empty replacement", where);
    replacements_.emplace_back(mark, " ");
    const bool prefix = json_get_or(description, "add_prefix_space", true, where);
    strips_leading_space_ = json_get_or<std::string>(description, "prepend_scheme",
                                                     prefix ? "always" : "never", where) != "never";
  } else {
    fail("{}: decoder \"{}\" is not supported", where, type);
  }
}

std::string TokenDecoder::bytes(std::string_view spelling, bool literal) const {
  if (byte_fallback_)
    if (const auto byte = byte_token(spelling)) return std::string(1, static_cast<char>(*byte));
  if (byte_level_ && !literal)
    if (auto decoded = byte_level_decode(spelling)) return *std::move(decoded);
  std::string text(spelling);
  for (const auto& [from, to] : replacements_)
    for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
      text.replace(at, from.size(), to);
  return text;
}

}  // namespace quatrain
