// Ranks with a GPU each: collectives and messages of GPU tensors over NCCL.
#pragma once
#include <memory>

#include "comm/communicator.h"

namespace mcpp {

/// A group of the ranks of `host`, for tensors of `device` (which outlives it) and, through `host`, for those in host
/// memory. Called by all ranks of `host`, over which NCCL's ids travel. Groups split off are of the same kind. Defined
/// only where the program is built with CUDA (kWithCuda).
///
/// Operations run on streams of the group, after what was queued on the device's compute stream before, and wait()
/// makes the compute stream wait, never the host. NCCL chooses the order of a sum by layout and size: the same bits in
/// every run of a layout, but not those of the other backends; bf16 and fp16 are rounded at each hop.
std::unique_ptr<Communicator> make_nccl_communicator(std::unique_ptr<Communicator> host, Device& device);

}  // namespace mcpp
