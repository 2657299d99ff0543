// One transformer layer, with norms before its branches, after them, or both (model.norm_position):
//   x1 = x  + dropout(norm(attention(norm(x)) + bias))
//   y  = x1 + dropout(norm(mlp(norm(x1)) + bias)), or experts in place of the MLP
// With use_parallel_residual the MLP takes x in place of x1. With sequence parallelism x, x1 and y are this rank's part
// of the sequence, [s / tp, b, h].
#pragma once
#include <memory>
#include <string>

#include "base/kept_ref.h"
#include "model/layers/attention.h"
#include "model/layers/branch.h"
#include "model/layers/moe/moe_layer.h"
#include "model/layers/norm.h"

namespace mcpp {

/// One of the two steps of a layer, what is added to the residual stream:
/// residual + dropout(after(branch(before(x)) + bias)), where a norm may be missing. Saves what these save, and x where
/// the norm before is missing only in so far as the branch does.
class ResidualBranch {
 public:
  /// `site` is its name, for dropout; `before` and `after` those of the norms, of which model.norm_position says which
  /// there are.
  ResidualBranch(std::string site, KeptRef<ModelContext> context, const std::string& before,
                 std::unique_ptr<Branch> branch, const std::string& after);

  Tensor forward(const Tensor& x, const Tensor& residual, Pass& pass);
  /// Where x was the residual: its gradient from dy, that of the result, whose memory may be used for it.
  Tensor backward(const Tensor& dy, Pass& pass);
  /// dx, which is not dy, += the gradient of x alone.
  void backward_add(const Tensor& dy, Pass& pass, Tensor& dx);
  /// As Module::gives().
  ActivationPlacement gives(ActivationPlacement x) const;
  void visit(const ParamVisitor& f);

 private:
  Dropout dropout(const Tensor& x, const Pass& pass) const;
  /// Of x, from that of what is added to the residual.
  void backward_branch(const Tensor& d_added, Pass& pass, Tensor& dx);

  std::string site_;
  const ModelContext& context_;
  std::unique_ptr<Norm> before_, after_;  // null without
  std::unique_ptr<Branch> branch_;
};

class TransformerLayer final : public Module {
 public:
  /// `layer` counts from 0 over the whole model.
  TransformerLayer(i64 layer, KeptRef<ModelContext> context, RotaryTable& rotary);

  Tensor forward(const Tensor& x, Pass& pass) override;
  /// dy's memory may be used for the result.
  Tensor backward(const Tensor& dy, Pass& pass) override;
  ActivationPlacement gives(ActivationPlacement x) const override;
  void visit(const ParamVisitor& f) override;
  /// Null in a layer without experts.
  Router* router() { return router_; }

 private:
  std::unique_ptr<Branch> make_mlp(i64 layer, const std::string& name);

  const ModelContext& context_;
  Router* router_ = nullptr;
  ResidualBranch attention_, mlp_;
};

}  // namespace mcpp
