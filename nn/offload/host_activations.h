// Activations offloaded to host memory.
#pragma once
#include <deque>

#include "nn/offload/activation_store.h"
#include "tensor/host/host_rooms.h"

namespace mcpp {

/// Host-memory activation store, with a device of its own in the memory statistics. It serves GPU activations and, on
/// machines without a GPU, those of another CPU device, which takes the same code path.
///
/// Copies are asynchronous. The tensors of the last kLeaving calls of put() are being copied and stay on their device,
/// where backward finds them; earlier ones are copied back from expect() on.
class HostActivations final : public ActivationStore {
 public:
  static constexpr std::size_t kLeaving = 2;

  explicit HostActivations(std::unique_ptr<SideCopies> copies)
      : rooms_(*copies, MemoryClass::Activations), copies_(std::move(copies)) {}

  std::unique_ptr<TensorsAway> put(std::vector<Tensor> tensors) override;
  std::string describe() const override;
  BytesAway peak() const override { return {.in_host = rooms_.peak()}; }

 private:
  class Away;
  /// Tensors of one put() being copied to the host, with their originals.
  struct Leaving {
    std::vector<Tensor> tensors;
    std::vector<SideCopy> copies;

    /// Waits for the copies and frees the originals.
    void go();
  };

  HostRooms rooms_;
  std::unique_ptr<SideCopies> copies_;  // destroyed before the buffers, which its copies may use
  std::deque<std::shared_ptr<Leaving>> leaving_;
};

}  // namespace mcpp
