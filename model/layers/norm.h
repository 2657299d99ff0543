// LayerNorm or RMSNorm over the last axis.
#pragma once
#include <memory>
#include <string>

#include "base/stored_ref.h"
#include "model/config/context.h"
#include "nn/module.h"
#include "tensor/ops/ops.h"

namespace mcpp {

/// Columns of a norm inside the tensor-parallel region.
struct NormColumns {
  Box box;           ///< box of the weight: this rank's columns
  AxisPlacement tp;  ///< placement of the weight on tensor-parallel ranks
  /// Ranks across which the columns of a row are sharded evenly; nullptr: each row is on one rank. RMSNorm only.
  Communicator* ranks = nullptr;
};

/// Norm over the rows of x, which may be any shard of the sequence. If the columns are sharded across ranks, the sums
/// of squares are reduced over these ranks. Saves x [.., h], rstd [T] and, for LayerNorm, mean [T].
class Norm final : public Module {
 public:
  /// Creates a norm over the hidden axis of the residual stream.
  Norm(const std::string& name, const ModelContext& context);
  /// Creates a norm over `width` columns of activations that have the placement of the residual stream.
  Norm(const std::string& name, const ModelContext& context, i64 width, double epsilon);
  /// Creates a norm inside the tensor-parallel region.
  Norm(const std::string& name, const ModelContext& context, const NormColumns& columns);

  Tensor forward(const Tensor& x, MicrobatchContext& microbatch) override;
  Tensor backward(const Tensor& dy, MicrobatchContext& microbatch) override;
  ActivationPlacement output_placement(ActivationPlacement x) const override;
  /// Adds the gradient of x to dx, which already holds the gradient of the residual branch.
  void backward_add(const Tensor& dy, MicrobatchContext& microbatch, Tensor& dx);
  void visit(const ParamVisitor& f) override;

  /// Recomputes the output without saving anything.
  Tensor normalize(const Tensor& x) const;

 private:
  struct Output {
    Tensor y, mean, rstd;
  };
  Output compute(const Tensor& x) const;
  Tensor sum_of_dots(const Tensor& a, const Tensor& b, const Tensor* weight) const;
  void input_gradient(const Tensor& dy, MicrobatchContext& microbatch, Tensor& dx, bool adds_to_dx);

  bool is_in_stream_;
  NormRule rule_;
  Communicator* ranks_ = nullptr;  // nullptr if rows are not sharded
  Param weight_;
  std::unique_ptr<Param> bias_;  // LayerNorm only
};

/// Norm of queries or keys before rotation (Henry et al., "Query-Key Normalization for Transformers", 2020). Normalizes
/// each head, with one shared weight [head_dim]. With qk_layernorm_all_heads, normalizes all heads of a token together,
/// with a weight [heads * head_dim] that is sharded like the heads; tensor-parallel ranks then all-reduce one value per
/// token in forward and in backward. Saves a dense copy of the input and the norm's statistics.
class HeadNorm {
 public:
  /// `heads` is the number of query heads, or of query groups, of the full model.
  HeadNorm(const std::string& name, StoredRef<ModelContext> context, i64 heads);

  /// Normalizes x in place.
  void forward(Heads x, MicrobatchContext& microbatch);
  /// Replaces the gradient of forward's result by the gradient of its input, in place.
  void backward(Heads gradient, MicrobatchContext& microbatch);
  /// Throws like Module::output_placement(). The norm does not change the placement.
  void check_placement(ActivationPlacement heads) const { norm_.output_placement(heads); }
  void visit(const ParamVisitor& f) { norm_.visit(f); }

 private:
  Tensor rows_of(const Heads& x) const;

  bool normalizes_all_heads_;
  Norm norm_;
};

/// Divides each query head or key head by its root mean square, without a weight (Llama 4). Saves a dense copy of the
/// input and the inverse of its root mean squares.
class HeadL2Norm {
 public:
  explicit HeadL2Norm(const ModelContext& context) : eps_(context.config.norm_epsilon) {}

  /// Normalizes x in place.
  void forward(Heads x, MicrobatchContext& microbatch);
  /// Replaces the gradient of forward's result by the gradient of its input, in place.
  void backward(Heads gradient, MicrobatchContext& microbatch);

 private:
  double eps_;
};

}  // namespace mcpp
