// Projection of the input of a recurrent mixer to its channels (tensor/ops/scan/scan_shape.h).
#pragma once
#include <memory>
#include <string>

#include "model/config/block_spec.h"
#include "model/config/context.h"
#include "nn/module.h"
#include "parallel/tp/linear.h"
#include "parallel/tp/replicated_linear.h"

namespace mcpp {

/// Low-rank projection without biases, from x [s, b, h] (sequence parallel: [s / tp, b, h]) to [s, b, groups / tp *
/// width]. Consists of a replicated linear layer from h to the rank and a column-parallel linear layer.
class LowRankProjection final : public Module {
 public:
  LowRankProjection(const std::string& name, i64 layer, i64 rank, const Shape& out, const ModelContext& context);

  Tensor forward(const Tensor& x, MicrobatchContext& microbatch) override;
  Tensor backward(const Tensor& dy, MicrobatchContext& microbatch) override;
  ActivationPlacement output_placement(ActivationPlacement x) const override;
  void visit(const ParamVisitor& f) override;

 private:
  ReplicatedLinear down_;
  ColumnParallelLinear up_;
};

/// Projection from x [s, b, h] (sequence parallel: [s / tp, b, h]) to the channels [s, b, groups / tp * width] of a
/// recurrent mixer. In Kimi Delta Attention (ScanRule::ChannelDeltaRule), the projections to decays and output gates
/// are low-rank, with the width of a value head as rank.
class MixerProjection final : public Module {
 public:
  MixerProjection(const std::string& name, i64 layer, const RecurrentSpec& spec, const ModelContext& context);

  Tensor forward(const Tensor& x, MicrobatchContext& microbatch) override;
  Tensor backward(const Tensor& dp, MicrobatchContext& microbatch) override;
  ActivationPlacement output_placement(ActivationPlacement x) const override;
  void visit(const ParamVisitor& f) override;

 private:
  /// Returns the channels, assembled from the results of in_proj_, gate_proj_ and decay_proj_.
  Tensor join(const Tensor& direct, const Tensor& gates, const Tensor& decays) const;
  /// Returns columns [first, first + count) of each group of dp.
  Tensor extract(const Tensor& dp, i64 first, i64 count) const;

  ScanShape shape_;  // has only the groups of this rank
  ColumnParallelLinear in_proj_;
  std::unique_ptr<LowRankProjection> gate_proj_, decay_proj_;  // ChannelDeltaRule only
};

}  // namespace mcpp
