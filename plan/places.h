// Where a training keeps what its devices have no memory for.
#pragma once
#include <vector>

#include "plan/hardware/hardware.h"
#include "plan/layout_memory.h"

namespace mcpp {

/// Of the optimizer's states, and of weights, which only ZeRO 3 can have elsewhere.
struct Places {
  OffloadTier states = OffloadTier::Device, params = OffloadTier::Device;

  bool can_be(const Layout& layout) const { return params == OffloadTier::Device || layout.zero_stage == 3; }
};
/// Those of which the hardware knows how fast they are: the quickest first, which is all on the device. States go
/// first, as they are most and used once a step.
std::vector<Places> places(const HostRates& host);

/// A layout with what it keeps where it fits.
struct PlacedLayout {
  Layout layout;
  MemoryEstimate memory;  ///< of the rank that needs most
  bool fits = false;
};
/// Of states that may be elsewhere, those that stay on the device.
enum class StatesHere { AsHaveRoom, None };
/// Its activations stay on the device if it fits so; else they go to the memory of the host, or to a disk, whichever of
/// these comes first and is enough. Of states that are elsewhere as many hundredths stay as `states` says. Where
/// nothing is enough, it is as it needs least of the device.
PlacedLayout place(LayoutMemory& memory, const Hardware& hardware, Layout layout, double device_bytes,
                   StatesHere states = StatesHere::AsHaveRoom);

}  // namespace mcpp
