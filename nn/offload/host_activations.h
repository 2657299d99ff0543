// Activations offloaded to host memory.
#pragma once
#include <deque>

#include "nn/offload/activation_store.h"
#include "tensor/host/pinned_buffer_pool.h"

namespace mcpp {

/// Host-memory activation store, with a device of its own in the memory statistics. It serves GPU activations and, on
/// machines without a GPU, those of another CPU device, which takes the same code path.
///
/// Copies are asynchronous. The tensors of the last kLeaving calls of put() are being copied and stay on their device,
/// where backward finds them; earlier ones are copied back from expect() on.
class HostActivations final : public ActivationStore {
 public:
  static constexpr std::size_t kMaxPendingOffloads = 2;

  explicit HostActivations(std::unique_ptr<AsyncCopyEngine> copies)
      : pinned_buffers_(*copies, MemoryClass::Activations), copies_(std::move(copies)) {}

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
  std::unique_ptr<AsyncCopyEngine> copies_;  // destroyed before the buffers, which its copies may use
  std::deque<std::shared_ptr<PendingOffload>> pending_offloads_;
};

}  // namespace mcpp
