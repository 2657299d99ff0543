// Interface for offloading activations between forward and backward.
#pragma once
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/io/offload_tier.h"
#include "tensor/host/pinned_buffer_pool.h"
#include "tensor/tensor.h"

namespace mcpp {

/// Tensors offloaded together. The destructor discards the tensors; it must run before the destructor of the store.
class OffloadedTensors {
 public:
  virtual ~OffloadedTensors() = default;
  /// Starts prefetching the tensors. May be called repeatedly.
  virtual void prefetch() = 0;
  /// Returns the tensors in their original order, in new memory of their device. May be called once. Throws PeerLost if
  /// they were corrupted, so that a launcher restarts the run from its last checkpoint.
  virtual std::vector<Tensor> take() = 0;
};

/// Store of offloaded activations. Not thread-safe. Within a microbatch, tensors are reloaded in reverse order.
class ActivationStore {
 public:
  virtual ~ActivationStore() = default;
  /// Offloads copies of `tensors`. The caller may then modify or free the original memory. Throws PeerLost if earlier
  /// offloaded data was lost or the disk is full.
  virtual std::unique_ptr<OffloadedTensors> put(std::vector<Tensor> tensors) = 0;
  /// Returns a description for the log: "on the disk of /scratch, 1.2 GiB, by io_uring with direct I/O".
  virtual std::string describe() const = 0;
  /// Returns the peak usage so far.
  virtual OffloadedBytes peak() const = 0;
};

struct ActivationOffload {
  OffloadTier tier = OffloadTier::Device;
  Path folder = {};      ///< folder of the file, for OffloadTier::File
  std::string key = {};  ///< configuration key that named the folder
  i64 bytes = 0;         ///< disk space preallocated before training; grows if it does not suffice
};

/// Creates a store for activations on `device`, or returns null if they stay on the device. Throws BadInput if the
/// folder cannot hold files or lacks the space.
std::unique_ptr<ActivationStore> make_activation_store(const ActivationOffload& offload, Device& device);

// Activations offloaded to host memory.

/// Host-memory activation store, which has a separate device in the memory statistics. It serves GPU activations and,
/// on hosts without a GPU, activations of a different CPU device, which take the same code path.
///
/// Copies are asynchronous. The tensors of the last kMaxPendingOffloads calls of put() are still being copied. They
/// stay on their device, so backward need not reload them. Earlier tensors are copied back, beginning with prefetch().
class HostActivations final : public ActivationStore {
 public:
  static constexpr std::size_t kMaxPendingOffloads = 2;

  explicit HostActivations(std::unique_ptr<AsyncCopyEngine> copies)
      : pinned_buffers_(*copies, MemoryClass::Activations), copy_engine_(std::move(copies)) {}

  std::unique_ptr<OffloadedTensors> put(std::vector<Tensor> tensors) override;
  std::string describe() const override;
  OffloadedBytes peak() const override { return {.in_host = pinned_buffers_.peak()}; }

 private:
  class OffloadedBatch;
  /// Tensors of one put() being copied to the host, with their originals.
  struct PendingOffload {
    std::vector<Tensor> tensors;
    std::vector<AsyncCopy> copies;

    /// Waits for the copies and frees the originals.
    void finish();
  };

  PinnedBufferPool pinned_buffers_;
  std::unique_ptr<AsyncCopyEngine> copy_engine_;  // destroyed before the buffers, which its copies may use
  std::deque<std::shared_ptr<PendingOffload>> pending_offloads_;
};

}  // namespace mcpp
