// Communication time of collectives: latency + bytes / bandwidth for each tier of links that a group spans.
#pragma once
#include "parallel/layout.h"
#include "plan/hardware/hardware.h"

namespace mcpp {

/// Predicts the time of each rank in a collective. All groups of an axis communicate concurrently, with a separate
/// bandwidth for each rank. A group that spans several tiers communicates hierarchically: first inside the nearest
/// tier, and then across the next tier with the bytes that remain per rank (like NCCL's rings over all NICs of a node).
class Collectives {
 public:
  explicit Collectives(const Hardware& hardware) : hardware_(hardware) {}

  /// Returns seconds. `bytes`: size of the full vector, of which each rank holds or receives a shard.
  double all_gather(double bytes, const RankGroup& group) const;
  double reduce_scatter(double bytes, const RankGroup& group) const { return all_gather(bytes, group); }
  double all_reduce(double bytes, const RankGroup& group) const;
  /// Returns seconds. Each rank holds `bytes` and sends an equal part to every rank.
  double all_to_all(double bytes, const RankGroup& group) const;
  /// Returns the seconds of a message to the rank `stride` ranks away.
  double message(double bytes, i64 stride) const;

  /// Returns the name of the farthest tier that a group spans; "" for one rank.
  std::string outermost_tier(const RankGroup& group) const;
  i64 max_ranks() const;
  /// Returns true if the nearest tier of links connects all ranks of the group.
  bool is_within_first_tier(const RankGroup& group) const { return members(0, group) >= group.ranks; }

 private:
  std::size_t tiers() const { return hardware_.links.tier.size(); }
  double bandwidth(std::size_t tier) const {
    return 1e9 * hardware_.links.bandwidth[tier] * hardware_.links.attained[tier];
  }
  double latency(std::size_t tier) const { return 1e-6 * hardware_.links.latency[tier]; }
  /// Returns the number of members of the group that are connected by links of this tier or a nearer one.
  i64 members(std::size_t tier, const RankGroup& group) const;
  double ring_latency(const RankGroup& group) const;
  double tree_latency(const RankGroup& group) const;
  double volume_seconds(double bytes, const RankGroup& group) const;

  const Hardware& hardware_;
};

}  // namespace mcpp
