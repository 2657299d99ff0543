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

namespace mcpp {

/// x [s, b, h] -> [s, b, h] (sequence parallel: [s / tp, b, h] -> [s / tp, b, h]). Each tensor-parallel rank routes its
/// part of the tokens, even without sequence parallelism. Saves x, the tensors of router and experts, the experts of
/// each token, and their outputs.
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
  Experts experts_;
  std::unique_ptr<SharedExpert> shared_;  // null without one
};

}  // namespace mcpp
