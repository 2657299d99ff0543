// Mixture of experts instead of the MLP (Shazeer et al., "Outrageously Large Neural Networks", 2017): each token is
// sent to the few experts that the router selects, and their outputs are summed with the router's weights.
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

/// y = x W^T + b for the tokens x [T, in] of this rank, to or from the latent of experts (moe_latent_size). Replicated
/// over tensor-parallel ranks, which have different tokens; in the model's dtype, like the experts. Saves nothing.
class LatentProjection {
 public:
  LatentProjection(const std::string& name, i64 in, i64 out, double init_std, const ModelContext& context);

  Tensor forward(const Tensor& x) const { return slice_.multiply_add(x, {}); }
  /// Returns dx, given the argument of forward().
  Tensor backward(const Tensor& dy, const Tensor& x, MicrobatchContext& microbatch);
  void visit(const ParamVisitor& f) { slice_.visit(f); }

 private:
  LinearSlice slice_;
};

/// x [s, b, h] -> [s, b, h] (sequence parallel: [s / tp, b, h] -> [s / tp, b, h]). Each tensor-parallel rank routes its
/// part of the tokens, even without sequence parallelism. With a latent (moe_latent_size), experts process a projection
/// of each token, which the ranks exchange; the router and the shared expert read the token itself. Saves x, the
/// tensors of router and experts, the experts of each token, and their outputs.
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
  std::unique_ptr<LatentProjection> fc1_latent_proj_, fc2_latent_proj_;  // to and from the latent; null without one
  Experts experts_;
  std::unique_ptr<SharedExpert> shared_;  // null without one
};

}  // namespace mcpp
