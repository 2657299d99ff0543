// Communicator for tensors of a device that a group cannot access, such as a GPU over MPI, staged through host memory.
#pragma once
#include <functional>
#include <memory>

#include "comm/communicator.h"

namespace mcpp {

/// Device-specific pinning of host memory for faster copies. Both functions may be null.
struct PinnedCopies {
  /// Pins memory until the returned handle is released. Returns null if the memory cannot be pinned.
  std::function<std::shared_ptr<void>(void* memory, i64 bytes)> pin;
  /// Waits for copies to the device, because copies from pinned memory are asynchronous.
  std::function<void()> finish;
};

/// Creates a group of the ranks of `host` for tensors of `device`, staged through host memory; all other tensors are
/// passed to `host`. Groups created by split() are staged as well. Supports several ranks per GPU, which NCCL does not.
/// Results are bitwise identical to those of `host`.
///
/// Calls block until the device has computed their inputs; wait() blocks until the device has received the outputs.
std::unique_ptr<Communicator> make_staged_communicator(std::unique_ptr<Communicator> host, Device& device,
                                                       PinnedCopies copies = {});

}  // namespace mcpp
