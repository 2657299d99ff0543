#include "parallel/ep/hierarchical_dispatcher.h"

#include <algorithm>
#include <numeric>

#include "parallel/ep/assumed_choices.h"
#include "tensor/ops/ops.h"
#include "tensor/ops/routing_tables.h"
#include "tensor/transfer.h"

namespace mcpp {
namespace {

i64 sum(std::span<const i64> values) {
  return std::accumulate(values.begin(), values.end(), i64{0});
}

/// Numbers of tokens that a rank sends and receives.
struct RouteCounts {
  std::vector<i64> to_relays;     ///< own tokens for the relay of each node, by rank of the exchange
  std::vector<i64> held;          ///< tokens from each source of this relay
  std::vector<i64> to_node;       ///< held tokens for each rank of this node
  std::vector<i64> from_sources;  ///< tokens for this rank from each rank of the exchange, in the order of arrival
  std::vector<i64> rows;          ///< rows of each expert of this rank
};

/// Tables of the routes of all tokens of an exchange, on the device, as seen by one rank.
class Routes {
 public:
  Routes(const ExpertChoice& choice, const ExpertParallel& parallel)
      : choice_(choice),
        parallel_(parallel),
        nodes_(parallel.nodes ? *parallel.nodes : ExchangeNodes::consecutive(ranks(), ranks())),
        rank_(parallel.exchange->rank()),
        node_(nodes_.node_of(rank_)),
        sources_(nodes_.sources(rank_)),
        local_(parallel.local_experts(choice.num_experts)) {
    for (const int relay : node_ranks())
      for (const int source : nodes_.sources(relay)) arrival_order_.push_back(source);
    find_destinations();
    counts_ = device().type() == DeviceType::Meta ? assumed_counts() : read_counts();
  }

  bool has_nodes() const { return nodes_.count() > 1; }
  bool has_neighbors() const { return node_ranks().size() > 1; }
  const RouteCounts& counts() const { return counts_; }
  /// Relay of each node with experts of a token, [T, nodes].
  const Tensor& relays() const { return relays_; }

  /// Returns the numbers of rows from each rank of the exchange in the first hop.
  std::vector<i64> received_by_relay() const {
    std::vector<i64> received(static_cast<std::size_t>(ranks()), 0);
    for (std::size_t i = 0; i < sources_.size(); ++i) received[static_cast<std::size_t>(sources_[i])] = counts_.held[i];
    return received;
  }

  /// Returns the numbers of rows from each rank of the node in the second hop.
  std::vector<i64> received_in_node() const {
    std::vector<i64> received;
    std::size_t first = 0;
    for (const int relay : node_ranks()) {
      const std::size_t count = nodes_.sources(relay).size();
      received.push_back(sum(std::span(counts_.from_sources).subspan(first, count)));
      first += count;
    }
    return received;
  }

  /// Returns the ranks of the node for each token that this relay holds.
  Tensor destinations_in_node() const {
    const i64 tokens = choice_.experts.dim(0);
    if (!has_nodes()) return in_node_.slice(rank_ * tokens, (rank_ + 1) * tokens);
    Tensor held = Tensor::empty({sum(counts_.held)}, DType::I32, device());
    Tensor slots = Tensor::like(held_);
    ops::sort_choices(held_, {0, std::ssize(sources_)}, held, slots);
    return rows_at(in_node_, held);
  }

  /// Computes the arrived row of each expert's row, and the experts' rows of each arrived row.
  void place_rows(Tensor& row_sources, Tensor& row_slots) const {
    Tensor arrived = Tensor::empty({sum(counts_.from_sources)}, DType::I32, device());
    Tensor arrived_slots = Tensor::like(arrivals_);
    ops::sort_choices(arrivals_, {0, ranks()}, arrived, arrived_slots);
    Tensor tokens = Tensor::empty({sum(counts_.rows)}, DType::I32, device());
    Tensor slots = Tensor::like(choice_.gathered_choices);
    ops::sort_choices(choice_.gathered_choices, local_, tokens, slots);
    row_sources = rows_at(arrived_slots, tokens).view({-1});
    row_slots = rows_at(slots, arrived);
  }

 private:
  Device& device() const { return choice_.experts.device(); }
  int ranks() const { return parallel_.exchange->size(); }
  const std::vector<int>& node_ranks() const { return nodes_.members(node_); }

  static Tensor rows_at(const Tensor& x, const Tensor& indices) {
    Tensor y = Tensor::like(x, {indices.numel(), x.dim(1)});
    ops::gather_rows(x, indices, y);
    return y;
  }

  /// Returns the distinct groups of the experts in `choices`; at most `max_groups` for each token. group_of(rank) is
  /// the group of a rank of the exchange, or -1.
  template <class F>
  Tensor distinct(const Tensor& choices, const std::vector<i32>& offsets, i64 max_groups, const F& group_of) const {
    std::vector<i32> groups;
    for (int rank = 0; rank < ranks(); ++rank) groups.push_back(group_of(rank));
    std::vector<i32> of_experts;
    const auto width = static_cast<std::ptrdiff_t>(parallel_.tp);
    for (i64 expert = 0; expert < choice_.num_experts; ++expert) {
      const auto first = groups.begin() + expert / local_.count * width;
      of_experts.insert(of_experts.end(), first, first + width);
    }
    Tensor found = Tensor::empty({choices.dim(0), std::min(choices.dim(1) * width, max_groups)}, DType::I32, device());
    ops::distinct_groups(choices,
                         {.groups = integers(of_experts, {choice_.num_experts, width}, device()),
                          .offsets = integers(offsets, device())},
                         found);
    return found;
  }

  void find_destinations() {
    const Tensor& all = choice_.gathered_choices;
    std::vector<i32> numbers(static_cast<std::size_t>(ranks()), -1), shared = numbers, order = numbers;
    for (std::size_t i = 0; i < sources_.size(); ++i) {
      numbers[static_cast<std::size_t>(sources_[i])] = static_cast<i32>(i);
      shared[static_cast<std::size_t>(sources_[i])] = 0;
    }
    for (std::size_t i = 0; i < arrival_order_.size(); ++i)
      order[static_cast<std::size_t>(arrival_order_[i])] = static_cast<i32>(i);
    const auto is_here = [this](int rank) { return nodes_.node_of(rank) == node_; };
    relays_ = distinct(choice_.experts, {0}, nodes_.count(),
                       [this](int rank) { return nodes_.relay(rank_, nodes_.node_of(rank)); });
    held_ = distinct(all, numbers, 1, [&](int rank) { return is_here(rank) ? 0 : -1; });
    in_node_ = distinct(all, shared, std::ssize(node_ranks()),
                        [&](int rank) { return is_here(rank) ? nodes_.index_of(rank) : -1; });
    arrivals_ = distinct(all, order, 1, [this](int rank) { return rank == rank_ ? 0 : -1; });
  }

  /// Counts on the device and reads all counts at once.
  RouteCounts read_counts() const {
    const struct {
      const Tensor& values;
      ExpertRange range;
    } tables[]{{relays_, {0, ranks()}},
               {held_, {0, std::ssize(sources_)}},
               {in_node_, {0, std::ssize(node_ranks())}},
               {arrivals_, {0, ranks()}},
               {choice_.gathered_choices, local_}};
    i64 all = 0;
    for (const auto& table : tables) all += table.range.count;
    const Tensor counts = Tensor::empty({all}, DType::I32, device());
    i64 first = 0;
    for (const auto& table : tables) {
      Tensor part = counts.flat(first, table.range.count);
      ops::count_choices(table.values, table.range, part);
      first += table.range.count;
    }
    const HostValues<i32> values(counts);
    auto next = values.begin();
    const auto take = [&next](const ExpertRange& range) {
      const auto begin = next;
      next += static_cast<std::ptrdiff_t>(range.count);
      return std::vector<i64>(begin, next);
    };
    return {.to_relays = take(tables[0].range),
            .held = take(tables[1].range),
            .to_node = take(tables[2].range),
            .from_sources = take(tables[3].range),
            .rows = take(tables[4].range)};
  }

  /// Returns the number of experts on these ranks. Consecutive ranks share an expert.
  i64 experts_on(std::span<const int> ranks) const {
    i64 parts = 0;
    for (std::size_t i = 0; i < ranks.size(); ++i)
      parts += i == 0 || ranks[i] / parallel_.tp != ranks[i - 1] / parallel_.tp;
    return parts * local_.count;
  }

  RouteCounts assumed_counts() const {
    const ChoiceSizes sizes = choice_.sizes();
    const auto tokens_for = [&](std::span<const int> ranks) {
      const bool has_local_experts =
          std::ranges::any_of(ranks, [&](int rank) { return rank / parallel_.tp == rank_ / parallel_.tp; });
      return assumed_tokens(sizes, parallel_, experts_on(ranks), has_local_experts);
    };
    RouteCounts counts;
    counts.to_relays.assign(static_cast<std::size_t>(ranks()), 0);
    i64 free_slots = sizes.tokens * relays_.dim(1);  // rounding must not exceed the slots of tokens
    const auto limited = [&free_slots](i64 tokens) {
      const i64 count = std::min(free_slots, tokens);
      free_slots -= count;
      return count;
    };
    for (int node = 0; node < nodes_.count(); ++node)
      counts.to_relays[static_cast<std::size_t>(nodes_.relay(rank_, node))] = limited(tokens_for(nodes_.members(node)));
    counts.held.assign(sources_.size(), tokens_for(node_ranks()));
    free_slots = sum(counts.held) * in_node_.dim(1);
    for (const int rank : node_ranks())
      counts.to_node.push_back(limited(tokens_for(std::span(&rank, 1)) * std::ssize(sources_)));
    counts.from_sources.assign(static_cast<std::size_t>(ranks()), tokens_for(std::span(&rank_, 1)));
    counts.rows = assumed_rows(sizes, parallel_);
    return counts;
  }

  const ExpertChoice& choice_;
  const ExpertParallel& parallel_;
  const ExchangeNodes nodes_;
  const int rank_, node_;
  const std::vector<int> sources_;    // ranks whose tokens this rank relays
  const ExpertRange local_;           // experts of this rank
  std::vector<int> arrival_order_;    // ranks of the exchange in the order in which their tokens arrive
  Tensor relays_;                     // [T, nodes]
  Tensor held_, in_node_, arrivals_;  // [ranks * T, m]: of all tokens
  RouteCounts counts_;
};

}  // namespace

HierarchicalDispatcher::HierarchicalDispatcher(const ExpertChoice& choice, const ExpertParallel& parallel) {
  const Routes routes(choice, parallel);
  const RouteCounts& counts = routes.counts();
  if (routes.has_nodes())
    hops_.emplace_back(*parallel.exchange, routes.relays(), counts.to_relays, routes.received_by_relay());
  if (routes.has_neighbors())
    hops_.emplace_back(parallel.node_exchange ? *parallel.node_exchange : *parallel.exchange,
                       routes.destinations_in_node(), counts.to_node, routes.received_in_node());
  routes.place_rows(row_sources_, row_slots_);
  rows_ = counts.rows;
}

Tensor HierarchicalDispatcher::send(const Tensor& rows, const OverlapFn& overlap_fn) const {
  Tensor result = rows;
  for (std::size_t hop = 0; hop < hops_.size(); ++hop)
    result = hops_[hop].send(result, hop == 0 ? overlap_fn : do_nothing);
  return result;
}

Tensor HierarchicalDispatcher::return_sums(const Tensor& rows, const OverlapFn& overlap_fn) const {
  Tensor result = rows;
  for (std::size_t hop = hops_.size(); hop-- > 0;)
    result = hops_[hop].return_sums(result, hop == 0 ? overlap_fn : do_nothing);
  return result;
}

}  // namespace mcpp
