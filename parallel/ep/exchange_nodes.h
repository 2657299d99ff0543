// Nodes of the ranks that exchange tokens, which determine the ranks that pass tokens on within a node.
#pragma once
#include <span>
#include <vector>

namespace mcpp {

/// Nodes of the ranks of an exchange, each with any number of them. A rank sends a token to another node only once, to
/// the relay of that node, which has the same index in its node as the sender unless that node has fewer ranks.
class ExchangeNodes {
 public:
  /// `nodes` is the node of each rank of the exchange; equal numbers are one node.
  explicit ExchangeNodes(std::span<const int> nodes);
  /// Returns the nodes of `ranks` ranks with `node_ranks` consecutive ranks each.
  static ExchangeNodes consecutive(int ranks, int node_ranks);

  int count() const { return static_cast<int>(members_.size()); }
  int ranks() const { return static_cast<int>(places_.size()); }
  /// Return the node of a rank, in the order of the nodes' first ranks, and its index among the ranks of this node.
  int node_of(int rank) const { return places_[static_cast<std::size_t>(rank)].node; }
  int index_of(int rank) const { return places_[static_cast<std::size_t>(rank)].index; }
  /// Returns the ranks of a node, in ascending order.
  const std::vector<int>& members(int node) const { return members_[static_cast<std::size_t>(node)]; }
  /// Returns the rank of `node` that receives tokens of `source` for the ranks of the node; `source` itself in its
  /// node.
  int relay(int source, int node) const;
  /// Returns the ranks whose tokens pass through `relay`, in ascending order; they include `relay`.
  std::vector<int> sources(int relay) const;

 private:
  struct Place {
    int node, index;
  };
  std::vector<Place> places_;              // of each rank
  std::vector<std::vector<int>> members_;  // of each node
};

}  // namespace mcpp
