#include "plan/offload_placement.h"

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
  for (const auto& [fit_with_offload, bytes] : {std::pair(layout.states_tier, memory.offloaded),
                                                {layout.params_tier, memory.offloaded_params},
                                                {layout.activations_tier, memory.offloaded_activations}})
    if (fit_with_offload == OffloadTier::Host) sum += bytes;
  return sum;
}

/// Device and host memory that a rank may use.
struct MemoryLimits {
  double device = 0, host = 0;

  bool has(const Layout& layout, const MemoryEstimate& memory) const {
    return memory.total() <= device && bytes_in_host(layout, memory) <= host;
  }
};

/// Offloads the smallest percentage of states that fits on the device: states kept there are updated at device speed
/// and need no transfer. Offloads all of them if even that does not suffice.
FittedLayout fit_states(LayoutMemory& memory, Layout layout, const MemoryLimits& limits, OnDeviceStates states) {
  layout.offloaded_state_fraction = 1;
  const MemoryEstimate all = memory.peak(layout);
  const FittedLayout without{layout, all, limits.has(layout, all)};
  if (all.offloaded <= 0 || all.total() > limits.device || states == OnDeviceStates::None) return without;
  const double least = 100 * (1 - (limits.device - all.total()) / all.offloaded);
  // Estimates are in whole pages and segments, so the proportional minimum may be slightly too large.
  for (i64 hundredths = std::max<i64>(1, std::llround(std::floor(least))); hundredths < 100; ++hundredths) {
    layout.offloaded_state_fraction = static_cast<double>(hundredths) / 100;
    const MemoryEstimate part = memory.peak(layout);
    if (part.total() > limits.device) continue;
    return {layout, part, limits.has(layout, part)};
  }
  return without;
}

}  // namespace

std::vector<OffloadPlacement> offload_placements(const HostRates& host) {
  const std::vector<OffloadTier> all = tiers(host);
  std::vector<OffloadPlacement> list;
  for (const OffloadTier states : all) list.push_back({.states = states});
  // Weights follow, to a tier at least as fast.
  for (const OffloadTier params : all)
    for (const OffloadTier states : all)
      if (params != OffloadTier::Device && states >= params) list.push_back({.states = states, .params = params});
  return list;
}

FittedLayout fit_with_offload(LayoutMemory& memory, const Hardware& hardware, Layout layout, double device_bytes,
                              OnDeviceStates states) {
  const MemoryLimits limits{device_bytes, 1e9 * hardware.host.memory};
  FittedLayout least;
  for (const OffloadTier tier : tiers(hardware.host)) {
    layout.activations_tier = tier;
    FittedLayout fitted = fit_states(memory, layout, limits, states);
    if (fitted.fits) return fitted;
    const bool is_first = tier == OffloadTier::Device;
    if (is_first || fitted.memory.total() < least.memory.total()) least = fitted;
    // Does not fit even without activations.
    if (is_first && fitted.memory.total() - fitted.memory.activations > device_bytes) break;
  }
  return least;
}

}  // namespace mcpp
