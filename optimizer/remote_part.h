// Parts whose states are on another device than their weights or their gradient: brought together there for their
// update, the next while one is updated. Mostly that is the host, and the weights are on a GPU; where weights are kept
// away and states are not, it is the other way round.
#pragma once
#include <deque>

#include "optimizer/update_rule.h"
#include "tensor/host/host_rooms.h"

namespace mcpp {

/// For one pass over the parts.
class RemoteParts {
 public:
  /// Both outlive this; `copies` are those of the device of the gradients.
  RemoteParts(SideCopies& copies, HostRooms& rooms) : copies_(copies), rooms_(rooms) {}

  /// Whether it makes a difference to expect() what comes next.
  bool is_beside() const { return !copies_.are_immediate(); }
  /// These tensors of the next part are wanted: begins to bring them.
  void expect(const std::vector<Tensor>& tensors);
  /// `here` with what is not on `device`, that of the states, copied there.
  UpdatePart bring(const UpdatePart& here, Device& device);
  /// After an update: the weights, and those in the model's type.
  void give_back_weights(const UpdatePart& there, const UpdatePart& here);
  /// After UpdateRule::prepare(): what it left in the place of the gradient.
  void give_back_gradient(const UpdatePart& there, const UpdatePart& here);
  /// What was given back has arrived.
  void finish_returns();

 private:
  /// A tensor on its way, and its place in host memory.
  struct Travelling {
    Tensor here;
    std::shared_ptr<const Tensor> room;
    SideCopy copy;
  };
  /// What may be on its way back while rooms are used again: weights and model of two parts.
  static constexpr std::size_t kReturning = 4;

  Travelling start(const Tensor& here);
  Tensor brought(const Tensor& here, Device& device);
  void give_back(const Tensor& there, const Tensor& here);

  SideCopies& copies_;
  HostRooms& rooms_;
  std::vector<Travelling> expected_, at_hand_;
  std::deque<Travelling> returning_;
  std::vector<SideCopy> to_host_;  // of what was given back there
};

/// The same numbers in the memory of `device`, themselves where they are there; the host waits for the ops that compute
/// them.
Tensor copy_to(Device& device, const Tensor& values);

}  // namespace mcpp
