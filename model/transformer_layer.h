// Layer built from a BlockSpec, with norms before its branches, after them, or both (BlockSpec::norm_position):
//   x1 = x  + dropout(norm(attention(norm(x)) + bias))
//   y  = x1 + dropout(norm(mlp(norm(x1)) + bias)), or experts instead of the MLP
// A block without a mixer or without a feed-forward part omits that branch. With use_parallel_residual the MLP reads x
// instead of x1. With sequence parallelism x, x1 and y are this rank's shard of the sequence, [s / tp, b, h].
#pragma once
#include <memory>
#include <string>

#include "base/stored_ref.h"
#include "model/config/block_spec.h"
#include "model/layers/attention.h"
#include "model/layers/branch.h"
#include "model/layers/moe/moe_layer.h"
#include "model/layers/multi_latent_attention.h"
#include "model/layers/norm.h"
#include "model/layers/recurrent_mixer.h"

namespace mcpp {

/// Residual branch of a layer: y = residual + dropout(after(branch(before(x)) + bias)). Either norm may be missing.
class ResidualBranch {
 public:
  /// `site` names the dropout. `before` and `after` are the names of the norms; `norms` selects which of them exist.
  ResidualBranch(std::string site, StoredRef<ModelContext> context, NormPosition norms, const std::string& before,
                 std::unique_ptr<Branch> branch, const std::string& after);

  Tensor forward(const Tensor& x, const Tensor& residual, MicrobatchContext& microbatch);
  /// Returns the gradient of x from dy, the gradient of the result. May overwrite dy. Requires that x was also the
  /// residual.
  Tensor backward(const Tensor& dy, MicrobatchContext& microbatch);
  /// Adds the gradient of x through the branch, without the gradient of the residual, to dx. dx must not alias dy.
  void backward_add(const Tensor& dy, MicrobatchContext& microbatch, Tensor& dx);
  /// Returns the placement of the result. Throws like Module::output_placement().
  ActivationPlacement output_placement(ActivationPlacement x) const;
  void visit(const ParamVisitor& f);
  Branch& branch() { return *branch_; }

 private:
  Dropout dropout(const Tensor& x, const MicrobatchContext& microbatch) const;
  /// Computes the gradient of x from the gradient of the value added to the residual.
  void backward_branch(const Tensor& d_added, MicrobatchContext& microbatch, Tensor& dx);

  std::string site_;
  const ModelContext& context_;
  std::unique_ptr<Norm> before_, after_;  // nullptr if missing
  std::unique_ptr<Branch> branch_;
};

class TransformerLayer final : public Module {
 public:
  /// `layer` is the global index, starting at 0. Layers of multi-token prediction follow the others. Uses `spec` or,
  /// without it, the block that the model's configuration assigns to the layer.
  TransformerLayer(i64 layer, StoredRef<ModelContext> context, RotaryTable& rotary);
  TransformerLayer(i64 layer, const BlockSpec& spec, StoredRef<ModelContext> context, RotaryTable& rotary);

  Tensor forward(const Tensor& x, MicrobatchContext& microbatch) override;
  /// May overwrite dy.
  Tensor backward(const Tensor& dy, MicrobatchContext& microbatch) override;
  ActivationPlacement output_placement(ActivationPlacement x) const override;
  void visit(const ParamVisitor& f) override;
  /// Returns the router of the experts, or nullptr without experts.
  Router* router() { return router_; }
  /// Returns the attention of the layer, or nullptr if it has no attention with a softmax.
  Branch* attention() {
    return attention_ && attention_->branch().attention_logits() ? &attention_->branch() : nullptr;
  }

 private:
  std::unique_ptr<Branch> make_feed_forward(i64 layer, const BlockSpec& spec, const std::string& name);

  const ModelContext& context_;
  Router* router_ = nullptr;
  std::unique_ptr<ResidualBranch> attention_, mlp_;  // nullptr if the block does not have this part
};

}  // namespace mcpp
