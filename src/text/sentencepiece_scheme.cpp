#include "text/sentencepiece_scheme.h"

#include "text/precompiled_map.h"

namespace quatrain {
namespace {

Json replace_regex(const char* pattern, const char* content) {
  return {{"type", "Replace"}, {"pattern", {{"Regex", pattern}}}, {"content", content}};
}

Json replace_string(const char* from, const char* to) {
  return {{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

}  // namespace

void apply_sentencepiece_scheme(const SentencePieceScheme& scheme, TokenizerDefinition& definition) {
  Json steps = Json::array();
  if (!scheme.charsmap.empty())
    steps.push_back({{"type", "Precompiled"}, {"precompiled_charsmap", base64_encode(scheme.charsmap)}});
  if (scheme.collapse_whitespace) {
    // The library strips the end when spaces are marks already.
    steps.push_back(replace_regex("\\A +|[ \u2581]+\\z", ""));
    steps.push_back(replace_regex(" {2,}", " "));
  }
  const bool first = scheme.dummy_prefix && scheme.only_first;
  if (first) {
    definition.pre_tokenizer = {
        {"type", "Metaspace"}, {"replacement", kSpaceMark}, {"prepend_scheme", "first"}, {"split", false}};
  } else {
    if (scheme.dummy_prefix) steps.push_back({{"type", "Prepend"}, {"prepend", kSpaceMark}});
    steps.push_back(replace_string(" ", kSpaceMark));
  }
  if (!steps.empty()) definition.normalizer = {{"type", "Sequence"}, {"normalizers", steps}};
  Json decoders = {replace_string(kSpaceMark, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}};
  if (scheme.dummy_prefix)
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  definition.decoder = {{"type", "Sequence"}, {"decoders", decoders}};
}

std::string mark_spaces(std::string text) {
  return replaced(std::move(text), " ", kSpaceMark);
}
std::string unmark_spaces(std::string text) {
  return replaced(std::move(text), kSpaceMark, " ");
}

}  // namespace quatrain
