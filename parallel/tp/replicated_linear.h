// Linear layer inside a tensor-parallel region whose weight is replicated on every rank.
#pragma once
#include <string>

#include "parallel/tp/linear.h"

namespace mcpp {

/// Replicated linear layer y = x W^T + b. x [.., in] are this rank's rows: all rows or, with sequence parallelism, its
/// part of the sequence. Neither pass communicates. Every rank computes the same gradient of W or, with sequence
/// parallelism, one term of it.
class ReplicatedLinear final : public Module {
 public:
  ReplicatedLinear(const std::string& name, i64 in, i64 out, Communicator& tp, const LinearOptions& options);
  Tensor forward(const Tensor& x, MicrobatchContext& context) override;
  Tensor backward(const Tensor& dy, MicrobatchContext& context) override;
  ActivationPlacement output_placement(ActivationPlacement x) const override;
  void visit(const ParamVisitor& f) override { slice_.visit(f); }

 private:
  Communicator& tp_;
  ActivationPlacement placement_;
  Fp8Scaling fp8_;
  LinearSlice slice_;
};

}  // namespace mcpp
