// Word embedding sharded by vocabulary rows over the tensor-parallel group.
#pragma once
#include <string>

#include "nn/module.h"
#include "parallel/tp/mappings.h"

namespace mcpp {

/// Vocabulary-parallel embedding. forward: tokens int32 [s, b] -> [s, b, h] (sequence parallel: this rank's part, [s /
/// tp, b, h]); each rank looks up the tokens it holds, and the results are summed over the group. backward: scatters dy
/// into this rank's rows and returns an undefined Tensor, because tokens have no gradient.
class VocabParallelEmbedding final : public Module {
 public:
  VocabParallelEmbedding(const std::string& name, i64 padded_vocab_size, i64 hidden_size, Communicator& tp,
                         double init_std, bool sequence_parallel = false);

  Tensor forward(const Tensor& tokens, MicrobatchContext& pass) override;
  Tensor backward(const Tensor& dy, MicrobatchContext& pass) override;
  ActivationPlacement output_placement(ActivationPlacement tokens) const override;
  void visit(const ParamVisitor& f) override { f(weight_); }
  /// Returns the weight, which the output layer shares if embeddings are tied.
  Param& weight() { return weight_; }

 private:
  TensorParallelRegion region_;
  Param weight_;
};

}  // namespace mcpp
