// What a transformer layer adds to its residual: attention, an MLP, or experts.
#pragma once
#include "nn/module.h"

namespace mcpp {

class Branch : public Module {
 public:
  /// Of its output, to be added with the residual; null without one.
  virtual const Tensor* bias() const = 0;
};

}  // namespace mcpp
