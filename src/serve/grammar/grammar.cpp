#include "serve/grammar/grammar.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace quatrain {
namespace {

using Node = Grammar::Node;

constexpr size_t kMostNodes = 200'000;

// The rules that `rule` may call before it reads a byte.
std::vector<Node> first_calls(const Grammar& grammar, Node rule) {
  std::vector<Node> calls, open = {rule};
  std::vector<bool> seen(grammar.nodes.size());
  while (!open.empty()) {
    const Node node = open.back();
    open.pop_back();
    if (seen[static_cast<size_t>(node)]) continue;
    seen[static_cast<size_t>(node)] = true;
    const auto& data = grammar.nodes[static_cast<size_t>(node)];
    open.insert(open.end(), data.epsilons.begin(), data.epsilons.end());
    for (const auto& call : data.calls) calls.push_back(call.rule);
  }
  return calls;
}

// A path over nodes that stand for rules; white, grey, black as usual.
void check_left_recursion(const Grammar& grammar, Node rule, std::vector<char>& colour, int depth) {
  require(depth < 1000, "the schema's references are nested too deeply");
  auto& mine = colour[static_cast<size_t>(rule)];
  require(mine != 1, "the schema refers to itself without anything in between");
  if (mine == 2) return;
  mine = 1;
  for (const Node next : first_calls(grammar, rule)) check_left_recursion(grammar, next, colour, depth + 1);
  colour[static_cast<size_t>(rule)] = 2;
}

}  // namespace

GrammarBuilder::Node GrammarBuilder::node() {
  require(grammar_.nodes.size() < kMostNodes, "the schema is too large: its grammar has more than {} nodes",
          kMostNodes);
  grammar_.nodes.emplace_back();
  return static_cast<Node>(grammar_.nodes.size() - 1);
}

GrammarBuilder::Node GrammarBuilder::byte(Node from, uint8_t low, uint8_t high, Node to) {
  to = target(to);
  grammar_.nodes[static_cast<size_t>(from)].bytes.push_back({low, high, to});
  return to;
}

GrammarBuilder::Node GrammarBuilder::literal(Node from, std::string_view text, Node to) {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto value = static_cast<uint8_t>(text[i]);
    from = byte(from, value, value, i + 1 == text.size() ? to : -1);
  }
  return text.empty() ? epsilon(from, to) : from;
}

GrammarBuilder::Node GrammarBuilder::call(Node from, Node rule, Node to) {
  to = target(to);
  grammar_.nodes[static_cast<size_t>(from)].calls.push_back({rule, to});
  return to;
}

GrammarBuilder::Node GrammarBuilder::epsilon(Node from, Node to) {
  if (to < 0) return from;
  grammar_.nodes[static_cast<size_t>(from)].epsilons.push_back(to);
  return to;
}

GrammarBuilder::Node GrammarBuilder::character(Node from, uint32_t low, uint32_t high, Node to) {
  to = target(to);
  struct Part {
    uint32_t low, high;
    int size;
  };
  for (const Part& part : {Part{0, 0x7F, 1}, Part{0x80, 0x7FF, 2}, Part{0x800, 0xD7FF, 3},
                           Part{0xE000, 0xFFFF, 3}, Part{0x10000, 0x10FFFF, 4}}) {
    const uint32_t first = std::max(low, part.low), last = std::min(high, part.high);
    if (first <= last) utf8(from, first, last, part.size, to);
  }
  return to;
}

// All code points of a range have `size` bytes. Splits it where the last bytes do not run through all values.
void GrammarBuilder::utf8(Node from, uint32_t low, uint32_t high, int size, Node to) {
  for (int tail = 1; tail < size; ++tail) {
    const uint32_t mask = (1u << (6 * tail)) - 1;
    if ((low & ~mask) == (high & ~mask)) continue;
    if ((low & mask) != 0) {
      utf8(from, low, low | mask, size, to);
      return utf8(from, (low | mask) + 1, high, size, to);
    }
    if ((high & mask) != mask) {
      utf8(from, low, (high & ~mask) - 1, size, to);
      return utf8(from, high & ~mask, high, size, to);
    }
  }
  constexpr std::array<uint8_t, 5> kLead = {0, 0x00, 0xC0, 0xE0, 0xF0};
  for (int i = 0; i < size; ++i) {
    const int shift = 6 * (size - 1 - i);
    const uint32_t first =
        i == 0 ? kLead[static_cast<size_t>(size)] | (low >> shift) : 0x80 | ((low >> shift) & 0x3F);
    const uint32_t last =
        i == 0 ? kLead[static_cast<size_t>(size)] | (high >> shift) : 0x80 | ((high >> shift) & 0x3F);
    from = byte(from, static_cast<uint8_t>(first), static_cast<uint8_t>(last), i + 1 == size ? to : -1);
  }
}

Grammar GrammarBuilder::finish(Node start) && {
  grammar_.start = start;
  std::vector<char> colour(grammar_.nodes.size());
  check_left_recursion(grammar_, start, colour, 0);
  for (const auto& data : grammar_.nodes)
    for (const auto& call : data.calls) check_left_recursion(grammar_, call.rule, colour, 0);
  return std::move(grammar_);
}

}  // namespace quatrain
