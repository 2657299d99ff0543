#include "plan/places.h"

namespace mcpp {
namespace {

/// The places that the hardware has rates of.
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

}  // namespace

std::vector<Places> places(const HostRates& host) {
  const std::vector<OffloadTier> all = tiers(host);
  std::vector<Places> list;
  for (const OffloadTier states : all) list.push_back({.states = states});
  // Weights follow, to where it is as quick or quicker.
  for (const OffloadTier params : all)
    for (const OffloadTier states : all)
      if (params != OffloadTier::Device && states >= params) list.push_back({.states = states, .params = params});
  return list;
}

PlacedLayout place_activations(LayoutMemory& memory, const Hardware& hardware, Layout layout, double device_bytes) {
  PlacedLayout least;
  for (const OffloadTier tier : tiers(hardware.host)) {
    layout.activations_place = tier;
    const MemoryEstimate estimate = memory.most(layout);
    const bool fits = estimate.total() <= device_bytes && bytes_in_host(layout, estimate) <= 1e9 * hardware.host.memory;
    const bool is_first = tier == OffloadTier::Device;
    if (fits) return {layout, estimate, true};
    if (is_first || estimate.total() < least.memory.total()) least = {layout, estimate, false};
    // Not even without them.
    if (is_first && estimate.total() - estimate.activations > device_bytes) break;
  }
  return least;
}

}  // namespace mcpp
