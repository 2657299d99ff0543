// Residual branch of a transformer layer: attention, an MLP, or experts.
#pragma once
#include "nn/module.h"

namespace mcpp {

class Branch : public Module {
 public:
  /// Returns the output bias, which the caller adds together with the residual, or nullptr.
  virtual const Tensor* bias() const = 0;
};

}  // namespace mcpp
