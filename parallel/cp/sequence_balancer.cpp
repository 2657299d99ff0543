#include "parallel/cp/sequence_balancer.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace mcpp {
namespace {

constexpr i64 kTile = 64;  // keys that kernels process together
constexpr double kBalanced = 1.01;

/// Returns the prefix sums of the cost of all queries: [s + 1].
std::vector<i64> prefix_costs_of(const AttentionWork& work) {
  std::map<i64, i64> layers;  // by window
  for (const i64 window : work.windows) ++layers[window];
  if (layers.empty()) layers[0] = 1;
  std::vector<i64> prefix_costs{0};
  for (i64 position = 0; position < work.seq_length; ++position) {
    i64 cost = prefix_costs.back();
    for (i64 b = 0; b < work.batch; ++b) {
      const i64 start = work.starts.empty() ? 0 : work.starts[static_cast<std::size_t>(position * work.batch + b)];
      const i64 keys = position - start + 1;
      for (const auto& [window, count] : layers) cost += count * (kTile + (window > 0 ? std::min(window, keys) : keys));
    }
    prefix_costs.push_back(cost);
  }
  return prefix_costs;
}

std::vector<i64> costs_of_pieces(const std::vector<i64>& prefix_costs, i64 pieces) {
  const i64 piece = (static_cast<i64>(prefix_costs.size()) - 1) / pieces;
  std::vector<i64> costs;
  for (i64 i = 0; i < pieces; ++i)
    costs.push_back(prefix_costs[static_cast<std::size_t>((i + 1) * piece)] -
                    prefix_costs[static_cast<std::size_t>(i * piece)]);
  return costs;
}

/// Assigns the pieces in order of descending cost, each to the least loaded member that still accepts one: [members *
/// runs].
std::vector<i64> assign_pieces(const std::vector<i64>& costs, i64 members) {
  const std::size_t runs = costs.size() / static_cast<std::size_t>(members);
  std::vector<i64> order(costs.size());
  std::iota(order.begin(), order.end(), i64{0});
  const auto cost = [&](i64 piece) { return costs[static_cast<std::size_t>(piece)]; };
  std::stable_sort(order.begin(), order.end(), [&](i64 a, i64 b) { return cost(a) > cost(b); });
  struct Member {
    std::vector<i64> pieces;
    i64 load = 0;
  };
  std::vector<Member> all(static_cast<std::size_t>(members));
  for (const i64 piece : order) {
    Member* least = nullptr;
    for (Member& member : all) {
      if (member.pieces.size() < runs && (!least || member.load < least->load)) least = &member;
    }
    least->pieces.push_back(piece), least->load += cost(piece);
  }
  std::vector<i64> assignment;
  for (Member& member : all) {
    std::sort(member.pieces.begin(), member.pieces.end());
    assignment.insert(assignment.end(), member.pieces.begin(), member.pieces.end());
  }
  return assignment;
}

/// Returns the first visible position of each piece's queries, given the document starts; within a sample these never
/// descend.
std::vector<i64> first_keys(const AttentionWork& work, i64 pieces) {
  if (work.starts.empty()) return {};
  std::vector<i64> first;
  for (i64 i = 0; i < pieces; ++i) {
    const auto row = work.starts.begin() + i * (work.seq_length / pieces) * work.batch;
    first.push_back(*std::min_element(row, row + work.batch));
  }
  return first;
}

SamplePartition partition_into(i64 runs, const SequencePartition& ranks, const AttentionWork& work,
                               const std::vector<i64>& prefix_costs) {
  const i64 count = runs * ranks.rings;
  std::vector<i64> pieces(static_cast<std::size_t>(count));
  std::iota(pieces.begin(), pieces.end(), i64{0});
  if (runs > 1) pieces = assign_pieces(costs_of_pieces(prefix_costs, count), ranks.rings);
  return {ranks, work.seq_length, std::move(pieces), first_keys(work, count)};
}

std::vector<i64> loads(const SequencePartition& ranks, const SamplePartition& partition,
                       const std::vector<i64>& prefix_costs) {
  const std::vector<i64> costs = costs_of_pieces(prefix_costs, partition.runs() * ranks.rings);
  std::vector<i64> sums;
  for (i64 member = 0; member < ranks.rings; ++member) {
    sums.push_back(0);
    for (const i64 piece : partition.pieces_of(member)) sums.back() += costs[static_cast<std::size_t>(piece)];
  }
  return sums;
}

bool is_possible(i64 runs, const SequencePartition& ranks, i64 seq_length) {
  const i64 pieces = runs * ranks.rings;
  return seq_length % (pieces * ranks.heads) == 0 && (runs <= 2 || seq_length / pieces % kTile == 0);
}

}  // namespace

SamplePartition balance_sequence_partition(const SequencePartition& ranks, const AttentionWork& work) {
  SamplePartition best = SamplePartition::zigzag(ranks, work.seq_length);
  if (ranks.rings == 1) return best;
  const std::vector<i64> prefix_costs = prefix_costs_of(work);
  i64 least = std::numeric_limits<i64>::max();
  for (i64 runs = 1; runs <= PositionRanges::kMaxRuns; runs *= 2) {
    if (!is_possible(runs, ranks, work.seq_length)) continue;
    SamplePartition partition = partition_into(runs, ranks, work, prefix_costs);
    const std::vector<i64> sums = loads(ranks, partition, prefix_costs);
    const i64 max_load = *std::max_element(sums.begin(), sums.end());
    if (max_load >= least) continue;
    best = std::move(partition), least = max_load;
    if (static_cast<double>(max_load * ranks.rings) <= kBalanced * static_cast<double>(prefix_costs.back())) break;
  }
  return best;
}

std::vector<i64> member_costs(const SequencePartition& ranks, const AttentionWork& work,
                              const SamplePartition& partition) {
  return loads(ranks, partition, prefix_costs_of(work));
}

}  // namespace mcpp
