// Regular expressions of tokenizers: PCRE2 over valid UTF-8 with Unicode classes.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace quatrain {

class Regex {
 public:
  /// `where` begins error texts. Throws for a pattern that PCRE2 does not take.
  Regex(std::string pattern, std::string where);

  /// Matches from left to right over one text, never overlapping, never empty.
  class Matches {
   public:
    Matches(const Regex& regex, std::string_view text) : regex_(regex), text_(text) {}
    /// Begin and end of the next match. Throws when the match needs more steps than any sane pattern does.
    std::optional<std::pair<size_t, size_t>> next();

   private:
    const Regex& regex_;
    std::string_view text_;
    size_t at_ = 0;
  };

  const std::string& pattern() const { return pattern_; }

 private:
  struct Code;
  std::string pattern_;
  std::string where_;
  std::shared_ptr<const Code> code_;
};

/// A pattern that matches `literal` and nothing else.
std::string quote_regex(std::string_view literal);

}  // namespace quatrain
