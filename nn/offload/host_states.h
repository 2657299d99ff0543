// States in host memory for weights on another device; they are updated on the host.
#pragma once
#include "nn/offload/state_store.h"
#include "tensor/host/async_copy.h"

namespace mcpp {

/// Creates a store with a CPU device of its own, with `threads` threads and separate memory statistics. On machines
/// without a GPU the weights are on another CPU device, which takes the same code path. `copies` transfers the stored
/// data, for which memory is pinned; it may be destroyed before the store.
std::unique_ptr<StateStore> make_host_states(int threads, i64 longest_segment,
                                             MemoryClass c = MemoryClass::OptimizerState,
                                             AsyncCopyEngine* copies = nullptr);

}  // namespace mcpp
