// Attention of a layer from queries, keys and values of this rank's positions to an output of these positions, wherever
// the keys are: an exchange of heads where there is one, and core attention in between.
#pragma once
#include <memory>

#include "parallel/cp/context_parallel.h"
#include "parallel/cp/qkv.h"

namespace mcpp {

class ContextAttention {
 public:
  /// heads and query_groups: those that this rank has before an exchange.
  ContextAttention(const ContextParallel& cp, i64 heads, i64 query_groups);

  /// What backward needs, all as it is between the exchanges: out [s, b, heads * head_dim].
  struct Kept {
    Qkv qkv;
    AttentionResult result;
  };

  /// As core attention takes them, for a microbatch that is cut so (null where it is not). `mine`, before an exchange,
  /// says which head is its first for dropout; its starts of documents are of the rows after it
  /// (SampleCut::of_member).
  CoreAttentionOptions options(const AttentionOptions& mine, std::shared_ptr<const SampleCut> cut) const;
  Kept forward(const Qkv& mine, const CoreAttentionOptions& how);
  /// result.out once more, from what forward kept.
  Tensor forward_again(const Qkv& kept, const CoreAttentionOptions& how) {
    return core_->forward(kept.heads(), how).out;
  }
  /// result.out, of all heads that this rank has and of its positions alone.
  Tensor output(const Kept& kept, const CoreAttentionOptions& how) {
    return exchange_ ? exchange_->to_positions(kept.result.out, how.cut->runs()) : kept.result.out;
  }
  /// The gradient of `mine`, from that of output(); `empty`, of its shapes, is overwritten and returned, where heads
  /// are exchanged.
  Qkv backward(const Tensor& d_output, const Kept& kept, const CoreAttentionOptions& how, Qkv empty);

  /// Whether keys and values are kept apart from queries, for a projection that gives them so or not.
  bool shares_groups(bool mine_do) const { return exchange_ ? exchange_->shares_groups() : mine_do; }
  bool exchanges_heads() const { return exchange_ != nullptr; }

 private:
  std::unique_ptr<HeadExchange> exchange_;  // null without
  std::unique_ptr<CoreAttention> core_;
  ContextParallel cp_;
  i64 heads_;
};

}  // namespace mcpp
