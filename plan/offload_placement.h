// Offload placement: where a training stores what does not fit in device memory.
#pragma once
#include <vector>

#include "plan/hardware/hardware.h"
#include "plan/layout_memory.h"

namespace mcpp {

/// Offload tiers of the optimizer states and of the weights. Only ZeRO 3 can offload weights.
struct OffloadPlacement {
  OffloadTier states = OffloadTier::Device, params = OffloadTier::Device;

  bool can_be(const Layout& layout) const { return params == OffloadTier::Device || layout.zero_stage == 3; }
};
/// Returns the placements for which the hardware has rates, the fastest first, which is all on the device. States are
/// offloaded before weights because they are the largest and used once per step.
std::vector<OffloadPlacement> offload_placements(const HostRates& host);

/// Layout with the offloads that make it fit.
struct FittedLayout {
  Layout layout;
  MemoryEstimate memory;  ///< of the rank that needs most
  bool fits = false;
};
/// Treatment of offloadable states: keep the largest part that fits on the device, or none.
enum class OnDeviceStates { AllThatFit, None };
/// Fits `layout` into memory. Activations stay on the device if that fits; otherwise they are offloaded to the first of
/// host memory and disk that suffices. Offloaded states are kept on the device in steps of one percent as `states`
/// says. If nothing fits, returns the variant with the least device memory.
FittedLayout fit_with_offload(LayoutMemory& memory, const Hardware& hardware, Layout layout, double device_bytes,
                              OnDeviceStates states = OnDeviceStates::AllThatFit);

}  // namespace mcpp
