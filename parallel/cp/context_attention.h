// Attention of one layer over the positions of all context-parallel ranks: core attention, with head exchanges before
// and after it if configured.
#pragma once
#include <memory>

#include "parallel/cp/context_parallel.h"
#include "parallel/cp/head_exchange.h"

namespace mcpp {

class ContextAttention {
 public:
  /// `heads` and `query_groups` are the numbers of heads and query groups of this rank before an exchange. Queries and
  /// keys are the first `key_dim` channels of each head of a Qkv, and values the first `value_dim` channels; 0 means
  /// all channels.
  ContextAttention(const ContextParallel& cp, i64 heads, i64 query_groups, i64 key_dim = 0, i64 value_dim = 0);

  /// Tensors saved for backward, in the layout between the exchanges: out [s, b, heads * value_dim].
  struct SavedAttention {
    Qkv qkv;
    AttentionResult result;
  };

  /// Gradient of the attention sinks of the heads before an exchange, fp32 (fp64) [heads], and the factor by which its
  /// old value is multiplied.
  struct SinkGradient {
    Tensor values;
    float beta = 0;
  };

  /// Returns the options of core attention. The first head of `local`, which keys dropout, is the first head before an
  /// exchange; document starts refer to the rows after the exchange (SamplePartition::member_positions).
  CoreAttentionOptions make_options(const CoreAttentionOptions& local) const;
  SavedAttention forward(const Qkv& local, const CoreAttentionOptions& options);
  /// Recomputes result.out from the tensors saved by forward.
  Tensor recompute_output(const Qkv& saved, const CoreAttentionOptions& options) { return attend(saved, options).out; }
  /// Returns result.out after the reverse exchange: all heads of this rank at its own positions.
  Tensor output(const SavedAttention& saved, const CoreAttentionOptions& options) {
    return exchange_ ? exchange_->to_positions(saved.result.out, options.partition->runs()) : saved.result.out;
  }
  /// Returns the gradient of `local` given the gradient of output(); unused channels are unspecified, or zero if they
  /// are sent. With a head exchange, `buffer`, shaped like `local`, is overwritten and returned. Adds the gradient of
  /// the sinks to `d_sinks`, unless it is undefined.
  Qkv backward(const Tensor& d_output, const SavedAttention& saved, const CoreAttentionOptions& options, Qkv buffer,
               const SinkGradient& d_sinks);

  /// Returns true if keys and values are stored separately from queries. `projection_shares_groups`: the projection
  /// already stores them separately.
  bool shares_groups(bool projection_shares_groups) const {
    return exchange_ ? exchange_->shares_groups() : projection_shares_groups;
  }
  bool exchanges_heads() const { return exchange_ != nullptr; }
  /// Returns true if forward() and backward() send unused channels to other ranks. forward() then expects zeros there,
  /// because what is left in memory differs between executions of a step (ContributionLog).
  bool sends_padding() const { return exchange_ && key_dim_ != value_dim_; }
  /// Returns the queries, keys and values of x without unused channels.
  QkvHeads views(const Qkv& x) const;

 private:
  Tensor own_heads(const Tensor& x) const;
  AttentionResult attend(const Qkv& qkv, const CoreAttentionOptions& options);

  std::unique_ptr<HeadExchange> exchange_;  // null without an exchange
  std::unique_ptr<CoreAttention> core_;
  ContextParallel cp_;
  i64 heads_, key_dim_, value_dim_;
};

}  // namespace mcpp
