#include "text/pre_tokenizer.h"

#include <utility>

#include "text/byte_level.h"
#include "text/regex.h"
#include "text/split_pattern.h"
#include "text/utf8.h"

namespace quatrain {

const std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

using Pieces = std::vector<TextPiece>;

// What becomes of the matches: pieces of their own, gone, joined with their like, or with a neighbour.
enum class Behavior { kIsolated, kRemoved, kContiguous, kMergedWithPrevious, kMergedWithNext };

Behavior behavior_named(const std::string& name, const std::string& where) {
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Contiguous") return Behavior::kContiguous;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  fail("{}: pre_tokenizer behavior \"{}\" is not known", where, name);
}

struct Span {
  size_t begin, end;
  bool match;
};

std::vector<Span> spans_of(const Regex& regex, std::string_view text, bool invert) {
  std::vector<Span> spans;
  size_t done = 0;
  Regex::Matches matches(regex, text);
  while (const auto match = matches.next()) {
    if (match->first > done) spans.push_back({done, match->first, invert});
    spans.push_back({match->first, match->second, !invert});
    done = match->second;
  }
  if (done < text.size()) spans.push_back({done, text.size(), invert});
  return spans;
}

std::vector<Span> arrange(const std::vector<Span>& spans, Behavior behavior) {
  std::vector<Span> out;
  for (size_t i = 0; i < spans.size(); ++i) {
    const Span& span = spans[i];
    const bool follows_text = i > 0 && !spans[i - 1].match;
    const bool follows_match = i > 0 && spans[i - 1].match;
    bool join = false;
    switch (behavior) {
      case Behavior::kIsolated:
        break;
      case Behavior::kRemoved:
        if (span.match) continue;
        break;
      case Behavior::kContiguous:
        join = i > 0 && spans[i - 1].match == span.match;
        break;
      case Behavior::kMergedWithPrevious:
        join = span.match && follows_text;
        break;
      case Behavior::kMergedWithNext:
        join = !span.match && follows_match;
        break;
    }
    if (join) {
      out.back().end = span.end;
    } else {
      out.push_back(span);
    }
  }
  return out;
}

void split_piece(const Regex& regex, Behavior behavior, bool invert, const TextPiece& piece, Pieces& out) {
  for (const Span& span : arrange(spans_of(regex, piece.text, invert), behavior))
    out.push_back({piece.text.substr(span.begin, span.end - span.begin), piece.first && span.begin == 0,
                   piece.continued && span.begin == 0});
}

}  // namespace

PreTokenizer::PreTokenizer(const Json& description, const std::string& where) {
  add(description, where);
}

void PreTokenizer::add(const Json& description, const std::string& where) {
  if (description.is_null()) return;
  const auto type = json_get<std::string>(description, "type", where);
  const auto split = [&](Regex regex, Behavior behavior, bool invert = false) {
    steps_.emplace_back([regex = std::move(regex), behavior, invert](const TextPiece& piece, Pieces& out) {
      split_piece(regex, behavior, invert, piece, out);
    });
  };
  if (type == "Sequence") {
    const auto parts = json_get<Json>(description, "pretokenizers", where);
    require(parts.is_array(), "{}: \"pretokenizers\" is not an array", where);
    for (const Json& part : parts) add(part, where);
  } else if (type == "Split") {
    split(split_pattern(json_get<Json>(description, "pattern", where), where),
          behavior_named(json_get<std::string>(description, "behavior", where), where),
          json_get_or(description, "invert", false, where));
  } else if (type == "Digits") {
    const bool single = json_get_or(description, "individual_digits", false, where);
    split(Regex(single ? R"(\p{N})" : R"(\p{N}+)", where), Behavior::kIsolated);
  } else if (type == "Punctuation") {
    split(Regex(R"([\p{P}!-/:-@\[-`{-~])", where),
          behavior_named(json_get_or<std::string>(description, "behavior", "Isolated", where), where));
  } else if (type == "WhitespaceSplit") {
    split(Regex(R"(\s+)", where), Behavior::kRemoved);
  } else if (type == "Whitespace") {
    const std::string word = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D})";
    split(Regex("[" + word + "]+|[^\\s" + word + "]+", where), Behavior::kRemoved, true);
  } else if (type == "ByteLevel") {
    if (json_get_or(description, "add_prefix_space", true, where))
      steps_.emplace_back([](TextPiece piece, Pieces& out) {
        if (!piece.continued && piece.text.front() != ' ') piece.text = " " + piece.text;
        out.push_back(std::move(piece));
      });
    if (json_get_or(description, "use_regex", true, where))
      split(Regex(std::string(kGpt2Pattern), where), Behavior::kIsolated);
    steps_.emplace_back([](TextPiece piece, Pieces& out) {
      piece.text = byte_level_encode(piece.text);
      out.push_back(std::move(piece));
    });
  } else if (type == "Metaspace") {
    const auto mark = json_get_or<std::string>(description, "replacement", "\u2581", where);
    // Older files say add_prefix_space, newer ones prepend_scheme.
    const bool prefix = json_get_or(description, "add_prefix_space", true, where);
    const auto scheme =
        json_get_or<std::string>(description, "prepend_scheme", prefix ? "always" : "never", where);
    require(scheme == "always" || scheme == "first" || scheme == "never",
            "{}: prepend_scheme \"{}\" is none of always, first, never", where, scheme);
    steps_.emplace_back([mark, scheme](TextPiece piece, Pieces& out) {
      std::string text;
      for (const char c : piece.text) c == ' ' ? text += mark : text += c;
      const bool wanted = scheme == "always" || (scheme == "first" && piece.first);
      if (wanted && !piece.continued && !text.starts_with(mark)) text.insert(0, mark);
      piece.text = std::move(text);
      out.push_back(std::move(piece));
    });
    if (json_get_or(description, "split", true, where))
      split(Regex(quote_regex(mark), where), Behavior::kMergedWithNext);
  } else {
    fail("{}: pre_tokenizer \"{}\" is not supported", where, type);
  }
}

std::vector<TextPiece> PreTokenizer::split(TextPiece piece) const {
  Pieces pieces;
  if (piece.text.empty()) return pieces;
  pieces.push_back(std::move(piece));
  for (const Step& step : steps_) {
    Pieces next;
    next.reserve(pieces.size());
    for (TextPiece& part : pieces) step(std::move(part), next);
    pieces = std::move(next);
  }
  return pieces;
}

}  // namespace quatrain
