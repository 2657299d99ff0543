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

/// Two linear maps without biases, to a narrow vector and from there: x [s, b, h] (sequence parallel: [s / tp, b, h])
/// -> [s, b, groups / tp * width]. The first is replicated on every tensor-parallel rank.
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

/// x [s, b, h] (sequence parallel: [s / tp, b, h]) -> the channels [s, b, groups / tp * width]. Kimi Delta Attention
/// (ScanRule::ChannelDeltaRule) projects decays and output gates through vectors of the width of a value head.
class MixerProjection final : public Module {
 public:
  MixerProjection(const std::string& name, i64 layer, const RecurrentSpec& spec, const ModelContext& context);

  Tensor forward(const Tensor& x, MicrobatchContext& microbatch) override;
  Tensor backward(const Tensor& dp, MicrobatchContext& microbatch) override;
  ActivationPlacement output_placement(ActivationPlacement x) const override;
  void visit(const ParamVisitor& f) override;

 private:
  Tensor join(const Tensor& direct, const Tensor& gates, const Tensor& decays) const;
  /// Returns the channels of `count` columns of each group from `first` on.
  Tensor extract(const Tensor& dp, i64 first, i64 count) const;

  ScanShape shape_;  // of this rank's groups
  ColumnParallelLinear in_proj_;
  std::unique_ptr<LowRankProjection> gate_proj_, decay_proj_;  // ChannelDeltaRule only
};

}  // namespace mcpp
