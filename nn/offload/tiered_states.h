// States of which a part is kept elsewhere than in the memory of the device: that of the host, or a disk.
#pragma once
#include "nn/offload/state_store.h"

namespace mcpp {

/// `far` keeps about that share of the bytes, `near` the rest. Segments of both take turns, so that the one is read
/// while the other is updated.
std::unique_ptr<StateStore> make_tiered_states(std::unique_ptr<StateStore> near, std::unique_ptr<StateStore> far,
                                               double far_share);

}  // namespace mcpp
