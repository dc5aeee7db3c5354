// A trie over bytes: which of many strings begin here.
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace quatrain {

class ByteTrie {
 public:
  /// Adds a string that is not empty. Of two equal ones the first keeps its value.
  void add(std::string_view text, int32_t value) {
    int32_t node = 0;
    for (const char c : text) {
      auto& child = children_[key(node, c)];
      if (child == 0) {
        values_.push_back(-1);
        child = static_cast<int32_t>(values_.size() - 1);
      }
      node = child;
    }
    if (values_[static_cast<size_t>(node)] < 0) values_[static_cast<size_t>(node)] = value;
  }

  /// Calls visit(size, value) for every added string that `text` begins with, shortest first.
  template <typename Visit>
  void prefixes(std::string_view text, Visit&& visit) const {
    int32_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      const auto child = children_.find(key(node, text[i]));
      if (child == children_.end()) return;
      node = child->second;
      if (values_[static_cast<size_t>(node)] >= 0) visit(i + 1, values_[static_cast<size_t>(node)]);
    }
  }

 private:
  struct Hash {
    size_t operator()(uint64_t key) const { return (key * 0x9E3779B97F4A7C15u) >> 16; }
  };
  static uint64_t key(int32_t node, char byte) {
    return (static_cast<uint64_t>(node) << 8) | static_cast<uint8_t>(byte);
  }

  std::vector<int32_t> values_{-1};  // by node; -1: no string ends here
  std::unordered_map<uint64_t, int32_t, Hash> children_;
};

}  // namespace quatrain
