#include "plan/places.h"

#include <algorithm>
#include <cmath>

namespace mcpp {
namespace {

/// Tiers for which the hardware has rates.
std::vector<OffloadTier> tiers(const HostRates& host) {
  std::vector<OffloadTier> list{OffloadTier::Device};
  if (host.memory_bandwidth <= 0 || host.link_bandwidth <= 0) return list;
  if (host.memory > 0) list.push_back(OffloadTier::Host);
  if (host.nvme_bandwidth > 0) list.push_back(OffloadTier::File);
  return list;
}

double bytes_in_host(const Layout& layout, const MemoryEstimate& memory) {
  double sum = 0;
  for (const auto& [place, bytes] : {std::pair(layout.states_place, memory.elsewhere),
                                     {layout.params_place, memory.params_elsewhere},
                                     {layout.activations_place, memory.activations_elsewhere}})
    if (place == OffloadTier::Host) sum += bytes;
  return sum;
}

/// Device and host memory that a rank may use.
struct Room {
  double device = 0, host = 0;

  bool has(const Layout& layout, const MemoryEstimate& memory) const {
    return memory.total() <= device && bytes_in_host(layout, memory) <= host;
  }
};

/// Offloads the smallest percentage of states that fits on the device: states kept there are updated at device speed
/// and need no transfer. Offloads all of them if even that does not suffice.
PlacedLayout keep_states(LayoutMemory& memory, Layout layout, const Room& room, StatesHere states) {
  layout.states_elsewhere = 1;
  const MemoryEstimate all = memory.most(layout);
  const PlacedLayout without{layout, all, room.has(layout, all)};
  if (all.elsewhere <= 0 || all.total() > room.device || states == StatesHere::None) return without;
  const double least = 100 * (1 - (room.device - all.total()) / all.elsewhere);
  // Estimates are in whole pages and segments, so the proportional minimum may be slightly too large.
  for (i64 hundredths = std::max<i64>(1, std::llround(std::floor(least))); hundredths < 100; ++hundredths) {
    layout.states_elsewhere = static_cast<double>(hundredths) / 100;
    const MemoryEstimate part = memory.most(layout);
    if (part.total() > room.device) continue;
    return {layout, part, room.has(layout, part)};
  }
  return without;
}

}  // namespace

std::vector<Places> places(const HostRates& host) {
  const std::vector<OffloadTier> all = tiers(host);
  std::vector<Places> list;
  for (const OffloadTier states : all) list.push_back({.states = states});
  // Weights follow, to a tier at least as fast.
  for (const OffloadTier params : all)
    for (const OffloadTier states : all)
      if (params != OffloadTier::Device && states >= params) list.push_back({.states = states, .params = params});
  return list;
}

PlacedLayout place(LayoutMemory& memory, const Hardware& hardware, Layout layout, double device_bytes,
                   StatesHere states) {
  const Room room{device_bytes, 1e9 * hardware.host.memory};
  PlacedLayout least;
  for (const OffloadTier tier : tiers(hardware.host)) {
    layout.activations_place = tier;
    PlacedLayout placed = keep_states(memory, layout, room, states);
    if (placed.fits) return placed;
    const bool is_first = tier == OffloadTier::Device;
    if (is_first || placed.memory.total() < least.memory.total()) least = placed;
    // Does not fit even without activations.
    if (is_first && placed.memory.total() - placed.memory.activations > device_bytes) break;
  }
  return least;
}

}  // namespace mcpp
