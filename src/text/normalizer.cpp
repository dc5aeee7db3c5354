#include "text/normalizer.h"

#include <memory>
#include <utility>

#include "text/byte_level.h"
#include "text/precompiled_map.h"
#include "text/regex.h"
#include "text/split_pattern.h"
#include "text/unicode_normal.h"
#include "text/utf8.h"

namespace quatrain {
namespace {

// A hostile Replace could multiply its text without end.
constexpr size_t kMaxText = size_t{1} << 32;

std::string replace_all(const Regex& regex, const std::string& text, const std::string& content) {
  std::string out;
  size_t done = 0;
  Regex::Matches matches(regex, text);
  while (const auto match = matches.next()) {
    out.append(text, done, match->first - done);
    out += content;
    done = match->second;
    require(out.size() < kMaxText, "the normalizer's Replace made a text of more than {} bytes", kMaxText);
  }
  return out.append(text, done, std::string::npos);
}

std::string strip(const std::string& text, bool left, bool right) {
  size_t begin = 0, end = text.size();
  while (left && begin < end) {
    const Utf8Char character = utf8_at(text, begin);
    if (!is_white_space(character.code)) break;
    begin += character.size;
  }
  while (right && end > begin) {
    size_t at = end - 1;
    while (at > begin && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
    if (!is_white_space(utf8_at(text, at).code)) break;
    end = at;
  }
  return text.substr(begin, end - begin);
}

}  // namespace

Normalizer::Normalizer(const Json& description, const std::string& where) {
  add(description, where);
}

void Normalizer::add(const Json& description, const std::string& where) {
  if (description.is_null()) return;
  const auto type = json_get<std::string>(description, "type", where);
  const auto step = [&](auto function) { steps_.emplace_back(std::move(function)); };
  const auto form = [&](NormalForm kind) {
    step([kind](std::string text, bool) { return normal_form(text, kind); });
  };
  if (type == "Sequence") {
    const auto parts = json_get<Json>(description, "normalizers", where);
    require(parts.is_array(), "{}: \"normalizers\" is not an array", where);
    for (const Json& part : parts) add(part, where);
  } else if (type == "NFC") {
    form(NormalForm::kNfc);
  } else if (type == "NFD") {
    form(NormalForm::kNfd);
  } else if (type == "NFKC") {
    form(NormalForm::kNfkc);
  } else if (type == "NFKD") {
    form(NormalForm::kNfkd);
  } else if (type == "Lowercase") {
    step([](std::string text, bool) { return lower_case(text); });
  } else if (type == "StripAccents") {
    step([](std::string text, bool) { return strip_accents(text); });
  } else if (type == "Strip") {
    const bool left = json_get_or(description, "strip_left", true, where);
    const bool right = json_get_or(description, "strip_right", true, where);
    step([left, right](std::string text, bool) { return strip(text, left, right); });
  } else if (type == "Prepend") {
    step([prefix = json_get<std::string>(description, "prepend", where)](std::string text, bool continued) {
      return text.empty() || continued ? text : prefix + text;
    });
  } else if (type == "Replace") {
    step([regex = split_pattern(json_get<Json>(description, "pattern", where), where),
          content = json_get<std::string>(description, "content", where)](std::string text, bool) {
      return replace_all(regex, text, content);
    });
  } else if (type == "Precompiled") {
    const auto blob = base64_decode(json_get<std::string>(description, "precompiled_charsmap", where), where);
    step([map = PrecompiledMap(blob, where)](std::string text, bool) { return map.apply(text); });
  } else if (type == "ByteLevel") {
    step([](std::string text, bool) { return byte_level_encode(text); });
  } else {
    fail("{}: normalizer \"{}\" is not supported", where, type);
  }
}

std::string Normalizer::apply(std::string text, bool continued) const {
  for (const auto& step : steps_) text = step(std::move(text), continued);
  return text;
}

}  // namespace quatrain
