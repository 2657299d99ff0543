// Trie over byte strings that finds all entries that are prefixes of a text.
#pragma once
#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "base/types.h"

namespace mcpp {

class ByteTrie {
 public:
  ByteTrie() = default;
  /// Builds a trie of `entries`, each a non-empty string and its id. The first of equal strings is used.
  explicit ByteTrie(std::vector<std::pair<std::string_view, i32>> entries);

  bool empty() const { return nodes_.empty(); }

  /// Calls visit(length, id) for each entry that is a prefix of `text`, shortest first.
  template <class Visit>
  void for_each_prefix(std::string_view text, Visit&& visit) const {
    if (nodes_.empty()) return;
    u32 node = 0;
    for (std::size_t size = 0; size < text.size();) {
      const auto byte = static_cast<u8>(text[size++]);
      node = node == 0 ? roots_[byte] : child(node, byte);
      if (node == 0) return;
      if (nodes_[node].id >= 0) visit(size, nodes_[node].id);
    }
  }

  /// Returns the length of the longest entry that is a prefix of `text`, or 0.
  std::size_t longest_prefix(std::string_view text) const {
    std::size_t longest = 0;
    for_each_prefix(text, [&](std::size_t length, i32) { longest = length; });
    return longest;
  }

 private:
  struct Node {
    u32 children = 0;  // index of the first child; siblings are adjacent and sorted by label
    u16 count = 0;
    u8 label = 0;
    i32 id = -1;
  };

  u32 child(u32 parent, u8 label) const {
    const Node* begin = nodes_.data() + nodes_[parent].children;
    const Node* end = begin + nodes_[parent].count;
    constexpr std::ptrdiff_t kLinearSearch = 8;
    const Node* child =
        end - begin <= kLinearSearch
            ? std::find_if(begin, end, [&](const Node& node) { return node.label >= label; })
            : std::lower_bound(begin, end, label, [](const Node& node, u8 wanted) { return node.label < wanted; });
    return child != end && child->label == label ? static_cast<u32>(child - nodes_.data()) : 0;
  }

  std::vector<Node> nodes_;       // nodes in breadth-first order, beginning with the root
  std::array<u32, 256> roots_{};  // children of the root by label
};

}  // namespace mcpp
