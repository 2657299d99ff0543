// States in the memory of the host, for weights on another device: they are updated there.
#pragma once
#include "nn/offload/state_store.h"
#include "tensor/host/side_copies.h"

namespace mcpp {

/// On a device of their own, so that its memory table has their memory apart, with that many threads. On machines
/// without a GPU the weights are on another device of the same kind, and everything goes as it does with one. `copies`:
/// those that what it keeps goes to and comes from, for which it pins its memory; they go before the store does.
std::unique_ptr<StateStore> make_host_states(int threads, i64 longest_segment,
                                             MemoryClass c = MemoryClass::OptimizerState, SideCopies* copies = nullptr);

}  // namespace mcpp
