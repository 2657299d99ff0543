// How long ranks communicate: latency + bytes / bandwidth, by the tiers of links that a group spans.
#pragma once
#include "plan/hardware/hardware.h"

namespace mcpp {

/// Every `stride`-th of neighbouring ranks, as all groups along one axis of a layout are.
struct RankGroup {
  i64 ranks = 1;
  i64 stride = 1;
};

/// What each of the ranks of a group hears, and the links that carry it. All groups of the axis communicate at the same
/// time, each rank at the bandwidth that is its own. A group that spans several tiers first works inside the nearest,
/// and sends on to the next only what each of its ranks is left with (NCCL's rings over all NICs of a node do the
/// same).
class Collectives {
 public:
  explicit Collectives(const Hardware& hardware) : hardware_(hardware) {}

  /// Seconds. `bytes`: of the whole vector, of which each rank has or gets a part.
  double all_gather(double bytes, const RankGroup& group) const;
  double reduce_scatter(double bytes, const RankGroup& group) const { return all_gather(bytes, group); }
  double all_reduce(double bytes, const RankGroup& group) const;
  /// Each rank has `bytes`, and sends an equal part of them to each.
  double all_to_all(double bytes, const RankGroup& group) const;
  /// From a rank to the one `stride` further.
  double message(double bytes, i64 stride) const;

  /// Name of the farthest tier that a group needs; "" for one rank.
  std::string farthest_tier(const RankGroup& group) const;
  i64 most_ranks() const;
  /// Whether the nearest links join all of them.
  bool is_in_first_tier(const RankGroup& group) const { return members(0, group) >= group.ranks; }

 private:
  std::size_t tiers() const { return hardware_.links.tier.size(); }
  double bandwidth(std::size_t tier) const {
    return 1e9 * hardware_.links.bandwidth[tier] * hardware_.links.attained[tier];
  }
  double latency(std::size_t tier) const { return 1e-6 * hardware_.links.latency[tier]; }
  /// Members of the group that links of this tier or nearer join.
  i64 members(std::size_t tier, const RankGroup& group) const;
  double ring_latency(const RankGroup& group) const;
  double tree_latency(const RankGroup& group) const;
  double volume_seconds(double bytes, const RankGroup& group) const;

  const Hardware& hardware_;
};

}  // namespace mcpp
