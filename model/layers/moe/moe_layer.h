// Mixture of experts instead of the MLP (Shazeer et al., "Outrageously Large Neural Networks", 2017): the router
// selects a few experts for each token, and their outputs are summed with the weights of the router.
#pragma once
#include <memory>
#include <string>

#include "model/config/block_spec.h"
#include "model/layers/branch.h"
#include "model/layers/moe/experts.h"
#include "model/layers/moe/router.h"
#include "parallel/ep/token_dispatcher.h"
#include "parallel/tp/linear.h"

namespace mcpp {

/// Projection y = x W^T + b of this rank's tokens x [T, in] to or from the latent of the experts (moe_latent_size).
/// Parameters have the model's dtype and are replicated on the tensor-parallel ranks, which process different tokens.
/// Saves nothing.
class LatentProjection {
 public:
  LatentProjection(const std::string& name, i64 in, i64 out, double init_std, const ModelContext& context);

  Tensor forward(const Tensor& x) const { return slice_.multiply_add(x, {}); }
  /// Returns the gradient of x, the argument of forward().
  Tensor backward(const Tensor& dy, const Tensor& x, MicrobatchContext& microbatch);
  void visit(const ParamVisitor& f) { slice_.visit(f); }

 private:
  LinearSlice slice_;
};

/// Maps x to y, both [s, b, h] (sequence parallel: [s / tp, b, h]). Each tensor-parallel rank routes its share of the
/// tokens, even without sequence parallelism. With a latent (moe_latent_size), ranks exchange, and experts process, a
/// projection of each token; the router and the shared expert read the token itself. Saves x, the experts of each token
/// and their outputs, in addition to what the router and the experts save.
class MoELayer final : public Branch {
 public:
  MoELayer(const std::string& name, i64 layer, const MoeSpec& spec, StoredRef<ModelContext> context);

  Tensor forward(const Tensor& x, MicrobatchContext& microbatch) override;
  Tensor backward(const Tensor& dy, MicrobatchContext& microbatch) override;
  ActivationPlacement output_placement(ActivationPlacement x) const override;
  void visit(const ParamVisitor& f) override;
  const Tensor* bias() const override { return nullptr; }
  Router& router() { return router_; }

 private:
  TokenRows token_rows(const Tensor& x, const MicrobatchContext& microbatch) const;
  std::unique_ptr<TokenDispatcher> make_dispatcher(const ExpertChoice& choice, i64 batch,
                                                   const MicrobatchContext& microbatch) const;

  const ModelContext& context_;
  SequenceShard shard_;
  Router router_;
  std::unique_ptr<LatentProjection> fc1_latent_proj_,
      fc2_latent_proj_;  // projections to and from the latent; nullptr without a latent
  Experts experts_;
  std::unique_ptr<SharedExpert> shared_;  // nullptr without a shared expert
};

}  // namespace mcpp
