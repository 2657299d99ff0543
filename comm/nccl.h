// NCCL backend: one GPU per rank.
#pragma once
#include <memory>

#include "comm/communicator.h"

namespace mcpp {

/// Creates a group of the ranks of `host`, for tensors of `device` and, through `host`, for tensors in host memory.
/// Collective over `host`, which also carries NCCL's ids. Groups split off are of the same kind. Defined only in CUDA
/// builds (kWithCuda).
///
/// Operations run on streams of the group, ordered after the work queued on the device's compute stream so far; wait()
/// makes the compute stream wait, never the host. NCCL chooses the summation order by layout and size: results are
/// bitwise identical between runs of the same layout but not to other backends. bf16 and fp16 sums are rounded at each
/// hop.
std::unique_ptr<Communicator> make_nccl_communicator(std::unique_ptr<Communicator> host, Device& device);

}  // namespace mcpp
