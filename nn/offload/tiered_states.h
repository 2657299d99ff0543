// States split between device memory and a slower tier (host memory or disk).
#pragma once
#include "nn/offload/state_store.h"

namespace mcpp {

/// Creates a store in which `far` holds a fraction of about `far_fraction` of the bytes and `near` the rest. Segments
/// of both alternate, so that one is read while the other is updated.
std::unique_ptr<StateStore> make_tiered_states(std::unique_ptr<StateStore> near, std::unique_ptr<StateStore> far,
                                               double far_fraction);

}  // namespace mcpp
