#include "serve/grammar/json_grammar.h"

#include <fmt/format.h>

#include "base/json.h"

namespace quatrain {
namespace {

constexpr int kIndent = 16;  // spaces at most at the beginning of a line
constexpr int kDigits = 15;  // such integers, and sums of a few of them, are exact in an IEEE double

}  // namespace

Grammar::Node JsonGrammar::rule(Kind kind) {
  Node& begin = rules_[kind];
  if (begin >= 0) return begin;
  begin = builder_.node();
  const Node known = begin;  // build() may ask for the rule itself
  builder_.make_final(build(kind, known));
  return known;
}

Grammar::Node JsonGrammar::build(Kind kind, Node begin) {
  GrammarBuilder& b = builder_;
  const Node end = b.node();
  switch (kind) {
    case kSpace: {
      b.epsilon(begin, end);
      b.byte(begin, ' ', ' ', end);
      Node line = b.byte(begin, '\n', '\n');
      for (int i = 0; i < kIndent; ++i) {
        b.epsilon(line, end);
        line = b.byte(line, ' ', ' ');
      }
      return b.epsilon(line, end);
    }
    case kCharacter: {
      b.character(begin, ' ', '!', end);
      b.character(begin, '#', '[', end);
      b.character(begin, ']', 0x10FFFF, end);
      const Node escape = b.byte(begin, '\\', '\\');
      for (const char c : {'"', '\\', '/', 'b', 'f', 'n', 'r', 't'})
        b.byte(escape, static_cast<uint8_t>(c), static_cast<uint8_t>(c), end);
      Node code = b.byte(escape, 'u', 'u');
      const auto hex = [&](Node from, Node to) {
        b.byte(from, '0', '9', to);
        b.byte(from, 'a', 'f', to);
        b.byte(from, 'A', 'F', to);
        return to;
      };
      // All but D8 to DF at the front: the halves of surrogate pairs.
      const Node second = b.node(), third = b.node(), fourth = b.node();
      b.byte(code, '0', '9', second);
      for (const auto& [low, high] : {std::pair{'a', 'c'}, {'e', 'f'}, {'A', 'C'}, {'E', 'F'}})
        b.byte(code, static_cast<uint8_t>(low), static_cast<uint8_t>(high), second);
      const Node d = b.byte(code, 'd', 'd');
      b.byte(code, 'D', 'D', d);
      b.byte(d, '0', '7', third);
      hex(second, third);
      hex(third, fourth);
      return hex(fourth, end);
    }
    case kString: {
      const Node inside = b.byte(begin, '"', '"');
      string_character(inside, inside);
      return b.byte(inside, '"', '"', end);
    }
    case kInteger:
    case kNumber: {
      const Node sign = b.byte(begin, '-', '-');
      b.epsilon(begin, sign);
      Node whole = b.byte(sign, '0', '0');
      b.epsilon(digits(b.byte(sign, '1', '9'), 0, kDigits - 1), whole);
      if (kind == kInteger) return b.epsilon(whole, end);
      const Node fraction = b.node();
      b.epsilon(whole, fraction);
      b.epsilon(digits(b.byte(whole, '.', '.'), 1, kDigits), fraction);
      b.epsilon(fraction, end);
      Node exponent = b.byte(fraction, 'e', 'e');
      b.byte(fraction, 'E', 'E', exponent);
      const Node power = b.byte(exponent, '-', '-');
      b.byte(exponent, '+', '+', power);
      b.epsilon(exponent, power);
      return b.epsilon(digits(power, 1, 2), end);
    }
    case kValue:
      for (const Node to : {string(begin), number(begin), object(begin), array(begin)}) b.epsilon(to, end);
      for (const char* word : {"true", "false", "null"}) b.literal(begin, word, end);
      return end;
    case kObject:
      return b.epsilon(map(begin, rule(kValue)), end);
    case kArray:
      return b.epsilon(list(begin, rule(kValue)), end);
    case kKinds:
      break;
  }
  return end;
}

Grammar::Node JsonGrammar::quoted(Node from, const std::string& text) {
  return builder_.literal(from, Json(text).dump());
}

Grammar::Node JsonGrammar::digits(Node from, int low, int high) {
  const Node end = builder_.node();
  for (int i = 0; i < high; ++i) {
    if (i >= low) builder_.epsilon(from, end);
    from = builder_.byte(from, '0', '9');
  }
  return builder_.epsilon(from, end);
}

Grammar::Node JsonGrammar::plain_character(Node from, uint32_t low, uint32_t high, Node to) {
  for (uint32_t code = low; code <= high && code < 0x80; ++code) {
    if (code == '"' || code == '\\' || code < ' ') {
      const std::string escaped = Json(std::string(1, static_cast<char>(code))).dump();
      builder_.literal(from, escaped.substr(1, escaped.size() - 2), to);
    } else {
      builder_.character(from, code, code, to);
    }
  }
  if (high >= 0x80) builder_.character(from, std::max(low, 0x80u), high, to);
  return to;
}

Grammar::Node JsonGrammar::map(Node from, Node value) {
  GrammarBuilder& b = builder_;
  const Node open = b.byte(from, '{', '{'), end = b.node();
  const Node first = white_space(open);
  b.byte(first, '}', '}', end);
  const Node colon = b.byte(string(first), ':', ':');
  const Node after = b.call(white_space(colon), value);
  const Node next = white_space(b.byte(after, ',', ','));
  b.byte(string(next), ':', ':', colon);
  return b.byte(white_space(after), '}', '}', end);
}

Grammar::Node JsonGrammar::list(Node from, Node value) {
  GrammarBuilder& b = builder_;
  const Node open = b.byte(from, '[', '['), end = b.node();
  const Node first = white_space(open);
  b.byte(first, ']', ']', end);
  const Node after = b.call(first, value);
  const Node next = white_space(b.byte(after, ',', ','));
  b.call(next, value, after);
  return b.byte(white_space(after), ']', ']', end);
}

}  // namespace quatrain
