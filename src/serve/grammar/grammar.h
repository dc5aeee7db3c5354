// Context-free grammars over bytes: rules that are small automata and may call each other.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace quatrain {

/// Nodes of all rules. A rule begins at a node and ends at any node that is final.
struct Grammar {
  using Node = int32_t;
  struct ByteEdge {
    uint8_t low, high;
    Node target;
  };
  struct Call {
    Node rule;         // the node where the called rule begins
    Node continue_at;  // where this rule goes on afterwards
  };
  struct NodeData {
    std::vector<ByteEdge> bytes;
    std::vector<Call> calls;
    std::vector<Node> epsilons;
    bool final = false;
  };
  std::vector<NodeData> nodes;
  Node start = 0;
};

/// Builds a grammar: every function leads from a node to another one, by default a new one, and returns it.
class GrammarBuilder {
 public:
  using Node = Grammar::Node;

  /// Throws when the grammar becomes too large.
  Node node();
  Node byte(Node from, uint8_t low, uint8_t high, Node to = -1);
  Node literal(Node from, std::string_view text, Node to = -1);
  Node call(Node from, Node rule, Node to = -1);
  Node epsilon(Node from, Node to = -1);
  /// One character in [low, high] (code points, no surrogates), as UTF-8.
  Node character(Node from, uint32_t low, uint32_t high, Node to = -1);
  void make_final(Node node) { grammar_.nodes[static_cast<size_t>(node)].final = true; }

  /// Checks that no rule calls itself before it has read a byte.
  Grammar finish(Node start) &&;

 private:
  Node target(Node to) { return to < 0 ? node() : to; }
  void utf8(Node from, uint32_t low, uint32_t high, int size, Node to);
  Grammar grammar_;
};

}  // namespace quatrain
