// Updates of parts whose states are on another device than their weights or gradient: copies these to the states'
// device, prefetching the next part during the update of the current one. Usually states are on the host and weights on
// a GPU; if weights are offloaded and states are not, it is the other way round.
#pragma once
#include <deque>

#include "optimizer/update_rule.h"
#include "tensor/host/host_rooms.h"

namespace mcpp {

/// Staging of remote parts during one pass over the parts.
class RemoteParts {
 public:
  /// `copies` must belong to the device of the gradients.
  RemoteParts(SideCopies& copies, HostRooms& rooms) : copies_(copies), rooms_(rooms) {}

  /// Returns true if prefetching with expect() has any effect.
  bool is_beside() const { return !copies_.are_immediate(); }
  /// Starts copying these tensors of the next part.
  void expect(const std::vector<Tensor>& tensors);
  /// Returns `here` with tensors that are not on `device`, the device of the states, copied there.
  UpdatePart bring(const UpdatePart& here, Device& device);
  /// Starts copying back the weights and those in the model's dtype after an update.
  void give_back_weights(const UpdatePart& there, const UpdatePart& here);
  /// Starts copying back the result of UpdateRule::prepare(), which replaces the gradient.
  void give_back_gradient(const UpdatePart& there, const UpdatePart& here);
  /// Waits for all copies back.
  void finish_returns();

 private:
  /// A tensor in flight, and its host buffer.
  struct Travelling {
    Tensor here;
    std::shared_ptr<const Tensor> room;
    SideCopy copy;
  };
  /// Max number of copies back in flight before buffers are reused: weights and model of two parts.
  static constexpr std::size_t kReturning = 4;

  Travelling start(const Tensor& here);
  Tensor brought(const Tensor& here, Device& device);
  void give_back(const Tensor& there, const Tensor& here);

  SideCopies& copies_;
  HostRooms& rooms_;
  std::vector<Travelling> expected_, at_hand_;
  std::deque<Travelling> returning_;
  std::vector<SideCopy> to_host_;  // copies back to the host
};

/// Returns a copy of `values` in the memory of `device`, or `values` if it is already there. Blocks the host until the
/// ops that compute it are done.
Tensor copy_to(Device& device, const Tensor& values);

}  // namespace mcpp
