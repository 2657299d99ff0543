// LayerNorm or RMSNorm over the last axis.
#pragma once
#include <memory>
#include <string>

#include "base/kept_ref.h"
#include "model/config/context.h"
#include "nn/module.h"
#include "tensor/ops/ops.h"

namespace mcpp {

/// What a norm inside the tensor-parallel region works on.
struct NormColumns {
  Box box;       ///< of the weight: the columns that this rank has of all
  AlongAxis tp;  ///< who holds the same ones
  /// The ranks that have the other columns of the same rows, as many each; null: every row is on one rank. RMSNorm
  /// only.
  Communicator* ranks = nullptr;
};

/// Works on whole rows, so on any part of the sequence; or on rows whose columns are cut over ranks, which then add up
/// their squares. Saves x [.., h], rstd [T] and, for LayerNorm, mean [T].
class Norm final : public Module {
 public:
  /// Of the residual stream, over the hidden axis.
  Norm(const std::string& name, const ModelContext& context);
  /// Inside the tensor-parallel region.
  Norm(const std::string& name, const ModelContext& context, const NormColumns& columns);

  Tensor forward(const Tensor& x, Pass& pass) override;
  Tensor backward(const Tensor& dy, Pass& pass) override;
  ActivationPlacement gives(ActivationPlacement x) const override;
  /// dx += the gradient: dx already holds that of the residual branch.
  void backward_add(const Tensor& dy, Pass& pass, Tensor& dx);
  void visit(const ParamVisitor& f) override;

  /// y alone, for recomputation.
  Tensor normalize(const Tensor& x) const;

 private:
  struct Output {
    Tensor y, mean, rstd;
  };
  Output compute(const Tensor& x) const;
  Tensor sum_of_dots(const Tensor& a, const Tensor& b, const Tensor* weight) const;
  void input_gradient(const Tensor& dy, Pass& pass, Tensor& dx, bool add);

  bool is_in_stream_;
  NormRule rule_;
  Communicator* ranks_ = nullptr;  // null where rows are whole
  Param weight_;
  std::unique_ptr<Param> bias_;  // LayerNorm only
};

/// The norm of queries, or of keys, before they are rotated: Henry et al., "Query-Key Normalization for Transformers",
/// 2020. Of each head by itself with one weight [head_dim] for all of them, or, with qk_layernorm_all_heads, of all
/// heads of a token together with a weight [heads * head_dim], which is cut over the tensor-parallel ranks as the heads
/// are: then ranks add up one number per token, forward and backward. Saves what goes in, dense, and the norm's
/// statistics.
class HeadNorm {
 public:
  /// heads: query heads, or query groups, of the whole model.
  HeadNorm(const std::string& name, KeptRef<ModelContext> context, i64 heads);

  /// In place.
  void forward(Heads x, Pass& pass);
  /// From the gradient of what forward gave, in place.
  void backward(Heads gradient, Pass& pass);
  /// As Module::gives(), of what it leaves as it is.
  void check_placement(ActivationPlacement heads) const { norm_.gives(heads); }
  void visit(const ParamVisitor& f) { norm_.visit(f); }

 private:
  Tensor rows_of(const Heads& x) const;

  bool takes_all_heads_;
  Norm norm_;
};

}  // namespace mcpp
