#include "serve/grammar/pattern.h"

#include <algorithm>
#include <charconv>
#include <memory>
#include <vector>

#include "base/error.h"
#include "text/utf8.h"

namespace quatrain {
namespace {

using Node = Grammar::Node;

constexpr int kMostRepeats = 1000;
constexpr int kMostDepth = 100;

struct Range {
  uint32_t low, high;
};
using Ranges = std::vector<Range>;

struct Expression {
  enum class Kind { Characters, Sequence, Choice, Repeat } kind = Kind::Sequence;
  Ranges ranges;                  // Characters
  std::vector<Expression> parts;  // Sequence, Choice; Repeat: the one part
  int low = 0, high = -1;         // Repeat; -1: without end
};

const Ranges kDigit = {{'0', '9'}};
const Ranges kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const Ranges kSpaces = {{' ', ' '}};
const Ranges kPrintable = {{' ', '~'}};

// Printable ASCII that is not in `ranges`.
Ranges negate(const Ranges& ranges) {
  Ranges result;
  for (uint32_t code = ' '; code <= '~'; ++code)
    if (std::ranges::none_of(ranges, [&](const Range& r) { return r.low <= code && code <= r.high; }))
      result.push_back({code, code});
  return result;
}

class Parser {
 public:
  Parser(const std::string& text, const std::string& where) : text_(text), where_(where) {}

  struct Anchored {
    Expression expression;
    bool begin, end;
  };

  // Alternatives at the top may be anchored each for itself, but then all alike.
  Anchored parse() {
    Anchored result{choice(0), begins_ > 0, ends_ > 0};
    check(at_ == text_.size(), "an unexpected )");
    check((begins_ == 0 || begins_ == alternatives_) && (ends_ == 0 || ends_ == alternatives_),
          "alternatives of which some only are anchored");
    return result;
  }

 private:
  void check(bool condition, const char* what) const {
    require(condition, "{}: pattern \"{}\": {} is not supported", where_, text_, what);
  }
  bool more() const { return at_ < text_.size(); }
  bool take(std::string_view token) {
    if (!std::string_view(text_).substr(at_).starts_with(token)) return false;
    at_ += token.size();
    return true;
  }

  Expression choice(int depth) {
    check(depth < kMostDepth, "nesting this deep");
    Expression result{.kind = Expression::Kind::Choice, .ranges = {}, .parts = {}};
    do {
      if (depth == 0) ++alternatives_;
      result.parts.push_back(sequence(depth));
    } while (take("|"));
    return result.parts.size() == 1 ? std::move(result.parts[0]) : result;
  }

  Expression sequence(int depth) {
    Expression result;
    if (take("^")) {
      check(depth == 0, "^ inside a group");
      ++begins_;
    }
    while (more() && text_[at_] != '|' && text_[at_] != ')') {
      if (take("$")) {
        check(depth == 0 && (!more() || text_[at_] == '|'), "$ before the end");
        ++ends_;
        break;
      }
      result.parts.push_back(quantified(depth));
    }
    return result;
  }

  Expression quantified(int depth) {
    Expression part = atom(depth);
    int low = 0, high = 0;
    if (take("*")) {
      high = -1;
    } else if (take("+")) {
      low = 1, high = -1;
    } else if (take("?")) {
      high = 1;
    } else if (more() && text_[at_] == '{') {
      ++at_;
      low = count();
      high = low;
      if (take(",")) high = more() && text_[at_] == '}' ? -1 : count();
      check(take("}") && (high < 0 || low <= high), "this repetition");
    } else {
      return part;
    }
    take("?");  // lazy: the same texts
    check(!more() || (text_[at_] != '*' && text_[at_] != '+' && text_[at_] != '?'),
          "a quantifier of a quantifier");
    Expression repeat{.kind = Expression::Kind::Repeat, .ranges = {}, .parts = {}};
    repeat.parts.push_back(std::move(part));
    repeat.low = low, repeat.high = high;
    return repeat;
  }

  int count() {
    int value = 0;
    const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
    check(error == std::errc() && value >= 0 && value <= kMostRepeats,
          "a repetition that is no number up to 1000");
    at_ = static_cast<size_t>(end - text_.data());
    return value;
  }

  Expression atom(int depth) {
    if (take("(")) {
      if (take("?")) {
        if (take("<")) {
          check(more() && text_[at_] != '=' && text_[at_] != '!', "look-behind");
          while (more() && text_[at_] != '>') ++at_;
          check(take(">"), "this group's name");
        } else {
          check(take(":"), "look-ahead or a flag");
        }
      }
      Expression group = choice(depth + 1);
      check(take(")"), "a ( without )");
      return group;
    }
    Expression characters{.kind = Expression::Kind::Characters, .ranges = {}, .parts = {}};
    if (take("[")) {
      characters.ranges = set();
    } else if (take(".")) {
      characters.ranges = kPrintable;
    } else if (take("\\")) {
      characters.ranges = escape();
    } else {
      check(std::string_view("*+?{^").find(text_[at_]) == std::string_view::npos, "a quantifier or ^ here");
      const uint32_t code = character();
      characters.ranges = {{code, code}};
    }
    return characters;
  }

  uint32_t character() {
    const Utf8Char c = utf8_at(text_, at_);
    check(c.code >= 0, "invalid UTF-8");
    at_ += c.size;
    return static_cast<uint32_t>(c.code);
  }

  // After a backslash.
  Ranges escape() {
    check(more(), "a \\ at the end");
    const char c = text_[at_];
    const auto one = [&](uint32_t code) {
      ++at_;
      return Ranges{{code, code}};
    };
    switch (c) {
      case 'd':
        return ++at_, kDigit;
      case 'w':
        return ++at_, kWord;
      case 's':
        return ++at_, kSpaces;
      case 'D':
        return ++at_, negate(kDigit);
      case 'W':
        return ++at_, negate(kWord);
      case 'S':
        return ++at_, negate(kSpaces);
      case 'n':
        return one('\n');
      case 't':
        return one('\t');
      case 'r':
        return one('\r');
      case 'f':
        return one('\f');
      case 'v':
        return one('\v');
      case 'x':
        return ++at_, hex(2);
      case 'u':
        return ++at_, hex(4);
      default:
        check(std::isalnum(static_cast<unsigned char>(c)) == 0,
              "this escape (\\b, \\p, a back reference ...)");
        const uint32_t code = character();
        return {{code, code}};
    }
  }

  Ranges hex(size_t digits) {
    uint32_t code = 0;
    check(at_ + digits <= text_.size(), "a short \\x or \\u");
    const char* begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, begin + digits, code, 16);
    check(error == std::errc() && end == begin + digits && (code < 0xD800 || code > 0xDFFF),
          "this \\x or \\u");
    at_ += digits;
    return {{code, code}};
  }

  // After [.
  Ranges set() {
    const bool negated = take("^");
    Ranges ranges;
    bool first = true;
    while (!take("]")) {
      check(more(), "a [ without ]");
      check(first || text_[at_] != '[' || at_ + 1 >= text_.size() || text_[at_ + 1] != ':', "a POSIX class");
      first = false;
      const Ranges low = take("\\") ? escape() : one_character();
      if (low.size() == 1 && low[0].low == low[0].high && at_ + 1 < text_.size() && text_[at_] == '-' &&
          text_[at_ + 1] != ']') {
        ++at_;
        const Ranges high = take("\\") ? escape() : one_character();
        check(high.size() == 1 && high[0].low == high[0].high && low[0].low <= high[0].low,
              "this range in []");
        // A range over the surrogates has no characters there.
        ranges.push_back({low[0].low, high[0].low});
      } else {
        ranges.insert(ranges.end(), low.begin(), low.end());
      }
    }
    check(!ranges.empty(), "an empty []");
    return negated ? negate(ranges) : ranges;
  }

  Ranges one_character() {
    const uint32_t code = character();
    return {{code, code}};
  }

  const std::string& text_;
  const std::string& where_;
  size_t at_ = 0;
  int alternatives_ = 0, begins_ = 0, ends_ = 0;
};

Node build(JsonGrammar& json, Node from, const Expression& expression) {
  GrammarBuilder& b = json.builder();
  switch (expression.kind) {
    case Expression::Kind::Characters: {
      const Node end = b.node();
      for (const Range& range : expression.ranges) json.plain_character(from, range.low, range.high, end);
      return end;
    }
    case Expression::Kind::Sequence:
      for (const Expression& part : expression.parts) from = build(json, from, part);
      return from;
    case Expression::Kind::Choice: {
      const Node end = b.node();
      for (const Expression& part : expression.parts) {
        const Node begin = b.node();  // a loop at the start of one part must not reach the others
        b.epsilon(from, begin);
        b.epsilon(build(json, begin, part), end);
      }
      return end;
    }
    case Expression::Kind::Repeat: {
      const Expression& part = expression.parts[0];
      for (int i = 0; i < expression.low; ++i) from = build(json, from, part);
      const Node end = b.node();
      if (expression.high < 0) {
        const Node again = b.node();
        b.epsilon(from, again);
        b.epsilon(build(json, again, part), again);
        return b.epsilon(again, end);
      }
      for (int i = expression.low; i < expression.high; ++i) {
        b.epsilon(from, end);
        from = build(json, from, part);
      }
      return b.epsilon(from, end);
    }
  }
  return from;
}

Node anything(JsonGrammar& json, Node from) {
  const Node loop = json.builder().node();
  json.builder().epsilon(from, loop);
  for (const Range& range : kPrintable) json.plain_character(loop, range.low, range.high, loop);
  return json.builder().epsilon(loop, json.builder().node());
}

}  // namespace

Node pattern(JsonGrammar& json, Node from, const std::string& expression, const std::string& where) {
  const Parser::Anchored parsed = Parser(expression, where).parse();
  if (!parsed.begin) from = anything(json, from);
  from = build(json, from, parsed.expression);
  return parsed.end ? from : anything(json, from);
}

}  // namespace quatrain
