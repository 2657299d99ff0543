// A part whose states are on another device than its weights or its gradient: brought together there for its update.
#pragma once
#include "optimizer/update_rule.h"

namespace mcpp {

class RemotePart {
 public:
  /// Copies what is not on `device`, that of the states, of `here` there; both outlive this.
  RemotePart(const UpdatePart& here, Device& device);

  UpdatePart& part() { return there_; }
  /// After an update: the weights, and those in the model's type.
  void give_back_weights();
  /// After UpdateRule::prepare(): what it left in the place of the gradient.
  void give_back_gradient();

 private:
  UpdatePart here_, there_;
};

/// The same numbers in the memory of `device`, themselves where they are there; the host waits for the ops that compute
/// them.
Tensor copy_to(Device& device, const Tensor& values);

}  // namespace mcpp
