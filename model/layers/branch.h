// Residual branch of a transformer layer: attention, an MLP, or experts.
#pragma once
#include "model/layers/attention_logits.h"
#include "nn/module.h"

namespace mcpp {

class Branch : public Module {
 public:
  /// Returns the output bias, which the caller adds together with the residual, or nullptr.
  virtual const Tensor* bias() const = 0;
  /// Returns the recorder of attention logits, or nullptr if the branch is not attention with a softmax.
  virtual AttentionLogits* attention_logits() { return nullptr; }
  /// Calls f for this rank's rows of weights and biases that produce queries and keys.
  virtual void visit_qk_rows(const QkRowVisitor&) {}
};

}  // namespace mcpp
