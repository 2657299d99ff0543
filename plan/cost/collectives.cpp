#include "plan/cost/collectives.h"

#include <algorithm>
#include <cmath>

namespace mcpp {
namespace {

/// Start-up time of a collective (NCCL's tuning tables: 8.4 us for rings).
constexpr double kStart = 8.4e-6;
/// Time of a step of a tree relative to one of a ring, because it forwards chunks large enough to be efficient (NCCL's
/// tuning tables: 28 us against 14 and 3.4).
constexpr double kTreeStep = 2;

}  // namespace

i64 Collectives::members(std::size_t tier, const RankGroup& group) const {
  return std::clamp<i64>(hardware_.links.ranks[tier] / group.stride, 1, group.ranks);
}

double Collectives::volume_seconds(double bytes, const RankGroup& group) const {
  double seconds = 0;
  i64 inner_ranks = 1;
  for (std::size_t tier = 0; tier < tiers() && inner_ranks < group.ranks; ++tier) {
    const i64 outer_ranks = tier + 1 == tiers() ? group.ranks : members(tier, group);
    const double share = static_cast<double>(inner_ranks), parts = static_cast<double>(outer_ranks) / share;
    seconds += bytes / share * (parts - 1) / parts / bandwidth(tier);
    inner_ranks = outer_ranks;
  }
  return seconds;
}

double Collectives::ring_latency(const RankGroup& group) const {
  double seconds = 0;
  double remaining_crossings = static_cast<double>(group.ranks);  // ring steps not yet assigned to a tier
  for (std::size_t tier = 0; tier < tiers(); ++tier) {
    const double tier_crossings =
        tier + 1 == tiers() ? 0
                            : std::ceil(static_cast<double>(group.ranks) / static_cast<double>(members(tier, group)));
    const double outer_crossings = tier_crossings > 1 ? tier_crossings : 0;
    seconds += (remaining_crossings - outer_crossings) * latency(tier);
    remaining_crossings = outer_crossings;
  }
  return seconds;
}

double Collectives::tree_latency(const RankGroup& group) const {
  double seconds = 0;
  i64 inner_ranks = 1;
  for (std::size_t tier = 0; tier < tiers() && inner_ranks < group.ranks; ++tier) {
    const i64 outer_ranks = tier + 1 == tiers() ? group.ranks : members(tier, group);
    const double steps = std::log2(static_cast<double>(outer_ranks) / static_cast<double>(inner_ranks));
    seconds += kTreeStep * steps * latency(tier);
    inner_ranks = outer_ranks;
  }
  return seconds;
}

double Collectives::all_gather(double bytes, const RankGroup& group) const {
  if (group.ranks < 2 || bytes <= 0) return 0;
  return kStart + volume_seconds(bytes, group) + ring_latency(group);
}

double Collectives::all_reduce(double bytes, const RankGroup& group) const {
  if (group.ranks < 2 || bytes <= 0) return 0;
  return kStart + 2 * (volume_seconds(bytes, group) + std::min(ring_latency(group), tree_latency(group)));
}

double Collectives::all_to_all(double bytes, const RankGroup& group) const {
  if (group.ranks < 2 || bytes <= 0) return 0;
  // Data for a rank beyond a tier uses the links of the farther tier all the way.
  double seconds = kStart + ring_latency(group);
  i64 inner_ranks = 1;
  for (std::size_t tier = 0; tier < tiers() && inner_ranks < group.ranks; ++tier) {
    const i64 outer_ranks = tier + 1 == tiers() ? group.ranks : members(tier, group);
    seconds +=
        bytes * static_cast<double>(outer_ranks - inner_ranks) / static_cast<double>(group.ranks) / bandwidth(tier);
    inner_ranks = outer_ranks;
  }
  return seconds;
}

double Collectives::message(double bytes, i64 stride) const {
  for (std::size_t tier = 0; tier < tiers(); ++tier)
    if (hardware_.links.ranks[tier] > stride || tier + 1 == tiers()) return latency(tier) + bytes / bandwidth(tier);
  return 0;
}

std::string Collectives::outermost_tier(const RankGroup& group) const {
  if (group.ranks < 2) return "";
  for (std::size_t tier = 0; tier + 1 < tiers(); ++tier)
    if (members(tier, group) == group.ranks) return hardware_.links.tier[tier];
  return hardware_.links.tier.back();
}

i64 Collectives::max_ranks() const {
  return hardware_.links.ranks.back();
}

}  // namespace mcpp
