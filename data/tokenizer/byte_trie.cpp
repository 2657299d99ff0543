#include "data/tokenizer/byte_trie.h"

namespace mcpp {

ByteTrie::ByteTrie(std::vector<std::pair<std::string_view, i32>> entries) {
  if (entries.empty()) return;
  std::ranges::stable_sort(entries, {}, [](const auto& entry) { return entry.first; });
  struct Range {
    std::size_t begin, end, depth;  // entries below the node, and the length of its string
  };
  std::vector<Range> ranges{{0, entries.size(), 0}};
  nodes_.resize(1);
  for (std::size_t node = 0; node < nodes_.size(); ++node) {
    auto [begin, end, depth] = ranges[node];
    if (entries[begin].first.size() == depth && depth > 0) nodes_[node].id = entries[begin].second;
    while (begin < end && entries[begin].first.size() == depth) ++begin;
    nodes_[node].children = static_cast<u32>(nodes_.size());
    while (begin < end) {
      const char label = entries[begin].first[depth];
      std::size_t next = begin;
      while (next < end && entries[next].first[depth] == label) ++next;
      nodes_.push_back({.label = static_cast<u8>(label)});
      ranges.push_back({begin, next, depth + 1});
      ++nodes_[node].count;
      begin = next;
    }
  }
  for (u32 i = 0; i < nodes_[0].count; ++i) roots_[nodes_[1 + i].label] = 1 + i;
}

}  // namespace mcpp
