#include "parallel/cp/sequence_partition.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "tensor/ops/ops.h"

namespace mcpp {

SamplePartition SamplePartition::zigzag(const SequencePartition& ranks, i64 seq_length) {
  if (ranks.ranks() == 1) return {ranks, seq_length, {0}};
  std::vector<i64> chunks;
  for (i64 member = 0; member < ranks.rings; ++member)
    chunks.insert(chunks.end(), {member, 2 * ranks.rings - 1 - member});
  return {ranks, seq_length, std::move(chunks)};
}

SamplePartition::SamplePartition(const SequencePartition& ranks, i64 seq_length, std::vector<i64> chunks,
                                 std::vector<i64> first_keys)
    : ranks_(ranks), seq_length_(seq_length), chunks_(std::move(chunks)), first_keys_(std::move(first_keys)) {
  const auto count = static_cast<i64>(chunks_.size());
  MCPP_CHECK(count > 0 && count % ranks.rings == 0 && runs() <= PositionRanges::kMaxRuns &&
                 seq_length % (count * ranks.heads) == 0,
             "cannot divide ", seq_length, " positions into ", count, " chunks for ", ranks.rings, " x ", ranks.heads,
             " ranks");
  MCPP_CHECK(first_keys_.empty() || first_keys_.size() == chunks_.size(), first_keys_.size(), " first keys for ", count,
             " chunks");
}

std::span<const i64> SamplePartition::chunks_of(i64 member) const {
  MCPP_CHECK(member >= 0 && member < ranks_.rings, "member ", member, " of ", ranks_.rings);
  return std::span(chunks_).subspan(static_cast<std::size_t>(member * runs()), static_cast<std::size_t>(runs()));
}

PositionRanges SamplePartition::positions(i64 member, i64 offset, i64 rows) const {
  std::vector<i64> begins;
  for (const i64 chunk_index : chunks_of(member)) begins.push_back(chunk_index * chunk() + offset);
  return PositionRanges::runs(begins, rows);
}

PositionRanges SamplePartition::rank_positions(i64 rank) const {
  const i64 part = chunk() / ranks_.heads;
  return positions(rank / ranks_.heads, rank % ranks_.heads * part, part);
}

bool SamplePartition::sees(i64 queries, i64 keys, i64 window) const {
  for (const i64 chunk_index : chunks_of(queries)) {
    const i64 begin = chunk_index * chunk(), end = begin + chunk();
    i64 first = first_keys_.empty() ? 0 : first_keys_[static_cast<std::size_t>(chunk_index)];
    if (window > 0) first = std::max(first, begin - window + 1);
    for (const i64 key : chunks_of(keys)) {
      if (key * chunk() < end && (key + 1) * chunk() > first) return true;
    }
  }
  return false;
}

i64 SamplePartition::reach(i64 keys, i64 window) const {
  for (i64 hops = ranks_.rings - 1; hops > 0; --hops) {
    if (sees((keys + hops) % ranks_.rings, keys, window)) return hops;
  }
  return 0;
}

Tensor select_rows(const Tensor& full, const PositionRanges& positions, i64 rows) {
  if (positions.first == 0 && rows == full.dim(0)) return full;
  Shape shape = full.shape();
  shape[0] = rows;
  Tensor part = Tensor::like(full, shape);
  for (i64 row = 0; row < rows;) {
    const PositionRanges remaining = positions.from(row);
    const i64 run = std::min(remaining.split, rows - row);
    Tensor to = part.slice(row, row + run);
    ops::copy(full.slice(remaining.first, remaining.first + run), to);
    row += run;
  }
  return part;
}

namespace {

constexpr i64 kTile = 64;  // keys that kernels process together
constexpr double kBalanced = 1.01;

/// Returns the prefix sums of the cost of all queries: [s + 1].
std::vector<i64> prefix_costs_of(const AttentionWork& work) {
  std::map<KeyLimits, i64> layers;  // number of layers with these limits
  for (const KeyLimits& limits : work.layers) ++layers[limits];
  if (layers.empty()) layers[{}] = 1;
  std::vector<i64> prefix_costs{0};
  for (i64 position = 0; position < work.seq_length; ++position) {
    i64 cost = prefix_costs.back();
    for (i64 b = 0; b < work.batch; ++b) {
      const i64 start = work.starts.empty() ? 0 : work.starts[static_cast<std::size_t>(position * work.batch + b)];
      const i64 keys = position - start + 1;
      for (const auto& [limits, count] : layers) {
        i64 visible = keys;
        if (limits.window > 0) visible = std::min(visible, limits.window);
        if (limits.chunk > 0) visible = std::min(visible, (keys - 1) % limits.chunk + 1);
        cost += count * (kTile + visible);
      }
    }
    prefix_costs.push_back(cost);
  }
  return prefix_costs;
}

std::vector<i64> costs_of_chunks(const std::vector<i64>& prefix_costs, i64 chunks) {
  const i64 chunk = (static_cast<i64>(prefix_costs.size()) - 1) / chunks;
  std::vector<i64> costs;
  for (i64 i = 0; i < chunks; ++i)
    costs.push_back(prefix_costs[static_cast<std::size_t>((i + 1) * chunk)] -
                    prefix_costs[static_cast<std::size_t>(i * chunk)]);
  return costs;
}

/// Assigns the chunks in order of descending cost, each to the least loaded member that still accepts one: [members *
/// runs].
std::vector<i64> assign_chunks(const std::vector<i64>& costs, i64 members) {
  const std::size_t runs = costs.size() / static_cast<std::size_t>(members);
  std::vector<i64> order(costs.size());
  std::iota(order.begin(), order.end(), i64{0});
  const auto cost = [&](i64 chunk) { return costs[static_cast<std::size_t>(chunk)]; };
  std::stable_sort(order.begin(), order.end(), [&](i64 a, i64 b) { return cost(a) > cost(b); });
  struct Member {
    std::vector<i64> chunks;
    i64 load = 0;
  };
  std::vector<Member> by_member(static_cast<std::size_t>(members));
  for (const i64 chunk : order) {
    Member* least_loaded = nullptr;
    for (Member& member : by_member) {
      if (member.chunks.size() < runs && (!least_loaded || member.load < least_loaded->load)) least_loaded = &member;
    }
    least_loaded->chunks.push_back(chunk), least_loaded->load += cost(chunk);
  }
  std::vector<i64> assignment;
  for (Member& member : by_member) {
    std::sort(member.chunks.begin(), member.chunks.end());
    assignment.insert(assignment.end(), member.chunks.begin(), member.chunks.end());
  }
  return assignment;
}

/// Returns the first visible position of each chunk's queries, given the document starts; within a sample these never
/// descend.
std::vector<i64> first_keys(const AttentionWork& work, i64 chunks) {
  if (work.starts.empty()) return {};
  std::vector<i64> first;
  for (i64 i = 0; i < chunks; ++i) {
    const auto row = work.starts.begin() + i * (work.seq_length / chunks) * work.batch;
    first.push_back(*std::min_element(row, row + work.batch));
  }
  return first;
}

SamplePartition partition_into(i64 runs, const SequencePartition& ranks, const AttentionWork& work,
                               const std::vector<i64>& prefix_costs) {
  const i64 count = runs * ranks.rings;
  std::vector<i64> chunks(static_cast<std::size_t>(count));
  std::iota(chunks.begin(), chunks.end(), i64{0});
  if (runs > 1) chunks = assign_chunks(costs_of_chunks(prefix_costs, count), ranks.rings);
  return {ranks, work.seq_length, std::move(chunks), first_keys(work, count)};
}

std::vector<i64> loads(const SequencePartition& ranks, const SamplePartition& partition,
                       const std::vector<i64>& prefix_costs) {
  const std::vector<i64> costs = costs_of_chunks(prefix_costs, partition.runs() * ranks.rings);
  std::vector<i64> sums;
  for (i64 member = 0; member < ranks.rings; ++member) {
    sums.push_back(0);
    for (const i64 chunk : partition.chunks_of(member)) sums.back() += costs[static_cast<std::size_t>(chunk)];
  }
  return sums;
}

bool is_possible(i64 runs, const SequencePartition& ranks, i64 seq_length) {
  const i64 chunks = runs * ranks.rings;
  return seq_length % (chunks * ranks.heads) == 0 && (runs <= 2 || seq_length / chunks % kTile == 0);
}

}  // namespace

SamplePartition balance_sequence_partition(const SequencePartition& ranks, const AttentionWork& work) {
  SamplePartition best = SamplePartition::zigzag(ranks, work.seq_length);
  if (ranks.rings == 1) return best;
  const std::vector<i64> prefix_costs = prefix_costs_of(work);
  i64 min_load = std::numeric_limits<i64>::max();
  for (i64 runs = 1; runs <= PositionRanges::kMaxRuns; runs *= 2) {
    if (!is_possible(runs, ranks, work.seq_length)) continue;
    SamplePartition partition = partition_into(runs, ranks, work, prefix_costs);
    const std::vector<i64> sums = loads(ranks, partition, prefix_costs);
    const i64 max_load = *std::max_element(sums.begin(), sums.end());
    if (max_load >= min_load) continue;
    best = std::move(partition), min_load = max_load;
    if (static_cast<double>(max_load * ranks.rings) <= kBalanced * static_cast<double>(prefix_costs.back())) break;
  }
  return best;
}

std::vector<i64> member_costs(const SequencePartition& ranks, const AttentionWork& work,
                              const SamplePartition& partition) {
  return loads(ranks, partition, prefix_costs_of(work));
}

}  // namespace mcpp
