// Recurrent mixers, Gated DeltaNet, Kimi Delta Attention and Mamba-2: input projection, causal convolution, scan, gated
// norm, output projection.
#pragma once
#include <memory>
#include <string>

#include "base/stored_ref.h"
#include "model/config/block_spec.h"
#include "model/config/context.h"
#include "model/layers/branch.h"
#include "model/layers/mixer_projection.h"
#include "parallel/cp/sequence_exchange.h"
#include "parallel/tp/linear.h"
#include "tensor/ops/scan/gated_scan.h"

namespace mcpp {

/// Mixer of a layer, from x [s, b, h] to y of the same shape, without the output bias. With sequence parallelism, both
/// are [s / tp, b, h]. Groups of heads are sharded across the tensor-parallel ranks. With context parallelism, an
/// all-to-all before the convolution and one after the norm let each rank process all positions of an equal share of
/// its groups. Saves the result of the input projection [s, b, groups * width] and of the scan [s, b, heads *
/// value_dim], in addition to what the projections save.
class RecurrentMixer final : public Branch {
 public:
  RecurrentMixer(const std::string& name, i64 layer, const RecurrentSpec& spec, StoredRef<ModelContext> context);

  Tensor forward(const Tensor& x, MicrobatchContext& microbatch) override;
  Tensor backward(const Tensor& dy, MicrobatchContext& microbatch) override;
  ActivationPlacement output_placement(ActivationPlacement x) const override;
  void visit(const ParamVisitor& f) override;
  const Tensor* bias() const override { return out_proj_.bias(); }

 private:
  /// Returns the slice of a parameter, or of its gradient, for the groups that this rank processes. The first axis must
  /// be one of groups, heads or channels.
  Tensor own_part(const Tensor& values) const;
  /// Calls f(gradient, beta) with the slice of the parameter's main gradient that own_part() selects.
  template <class F>
  void add_grad(Param& param, const F& f);
  ConvParams conv_params() const;
  ScanParams scan_params() const;
  ScanPositions positions(const MicrobatchContext& microbatch) const;
  /// Returns the result of the convolution [s, b, groups * conv_width]. Reads and updates `state` unless it is nullptr.
  Tensor convolve(const Tensor& p, const ScanPositions& positions, Tensor* state) const;
  Tensor scan(const Tensor& p, const ScanPositions& positions, MicrobatchContext* cached) const;
  Tensor norm_backward(const Tensor& d_out, const Tensor& y, const Tensor& p, Tensor& dp);
  void scan_backward(const Tensor& dy, const Tensor& p, const ScanPositions& positions, Tensor& dp);

  i64 layer_;
  const RecurrentSpec spec_;
  const ModelContext& context_;
  SequenceExchange exchange_;
  ScanShape shape_;  // has only the groups that this rank processes
  double norm_epsilon_;
  MixerProjection in_proj_;
  Param conv_weight_, a_log_, dt_bias_, norm_weight_;
  std::unique_ptr<Param> conv_bias_, skip_;  // Mamba-2 only
  RowParallelLinear out_proj_;
};

}  // namespace mcpp
