// A part whose states are on another device than its weights and its gradient: brought together there for its update.
#pragma once
#include "optimizer/update_rule.h"

namespace mcpp {

class RemotePart {
 public:
  /// Copies what is not on `host` of `here` there, which is of the CPU; both outlive this.
  RemotePart(const UpdatePart& here, Device& host);

  UpdatePart& part() { return there_; }
  /// After an update: the weights, and those in the model's type.
  void give_back_weights();
  /// After UpdateRule::prepare(): what it left in the place of the gradient.
  void give_back_gradient();

 private:
  UpdatePart here_, there_;
};

/// The same numbers in the memory of `host`, itself where it is there; the host waits for the ops that compute them.
Tensor copy_to(Device& host, const Tensor& values);

}  // namespace mcpp
