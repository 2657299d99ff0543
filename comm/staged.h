// Tensors of a device that a group does not reach, such as a GPU behind MPI, through memory of the host.
#pragma once
#include <functional>
#include <memory>

#include "comm/communicator.h"

namespace mcpp {

/// How memory of the host is made quick to copy from and to the device, where that can be done.
struct PinnedCopies {
  /// Page-locks memory until the result goes; null: nothing is locked.
  std::function<std::shared_ptr<void>(void* memory, i64 bytes)> pin;
  /// Waits until copies to the device, which do not wait themselves when they come from locked memory, are done.
  std::function<void()> finish;
};

/// A group of the ranks of `host`, for tensors of `device` (which outlives it) through buffers of its own in host
/// memory, and for all others through `host` as they are. Groups split off are of the same kind. Works for several
/// ranks on one GPU, where NCCL does not; results are those of `host`, to the bit.
///
/// Calls wait until the device has computed what they send, and wait() until it has what they received.
std::unique_ptr<Communicator> make_staged_communicator(std::unique_ptr<Communicator> host, Device& device,
                                                       PinnedCopies copies = {});

}  // namespace mcpp
