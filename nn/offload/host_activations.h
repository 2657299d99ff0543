// Activations in the memory of the host.
#pragma once
#include <deque>

#include "nn/offload/activation_store.h"
#include "tensor/host/host_rooms.h"

namespace mcpp {

/// On a device of their own, whose memory table has them apart: for activations on a GPU, and on machines without one
/// for those on another device of the same kind, where everything goes as it does with one.
///
/// Copies go on beside the computing: what the last kLeaving calls of put() took is on its way and still on its device,
/// where backward finds it; the rest comes back from expect() on.
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
  /// What one put() took: on its way, and where it was.
  struct Leaving {
    std::vector<Tensor> tensors;
    std::vector<SideCopy> copies;

    /// The device forgets them, when they have gone.
    void go();
  };

  HostRooms rooms_;
  std::unique_ptr<SideCopies> copies_;  // after the rooms, which copies may use until these go
  std::deque<std::shared_ptr<Leaving>> leaving_;
};

}  // namespace mcpp
