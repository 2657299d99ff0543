// Transfer of tokens to their experts and back. Forward: dispatch(), the experts, combine(); backward:
// combine_backward(), the experts' backward, dispatch_backward().
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "parallel/ep/assumed_choices.h"
#include "parallel/ep/expert_parallel.h"
#include "parallel/ep/row_exchange.h"
#include "parallel/ep/row_parts.h"
#include "tensor/ops/low_precision/row_codes.h"
#include "tensor/ops/routing_tables.h"

namespace mcpp {

// Communication plan of token dispatch: message sizes and row orders. The host computes it from the number of tokens
// that each rank has for each expert, or, if experts are padded to a fixed number of rows, without knowing them. All
// orders are fixed, so results are bitwise reproducible in a layout.

/// Plan of one rank for one microbatch of T tokens with k experts each. A choice is one of the T k (token, expert)
/// pairs; dropped choices have no expert. ops::sort_choices() orders the choices on the device.
struct DispatchPlan {
  i64 choices = 0;  ///< number of rows that this rank sends (not dropped), ordered by expert, then by token
  /// Ranges of the sent rows by destination, i.e. by part of the experts.
  std::vector<Part> sent;
  /// Ranges of the M received rows by sending rank, each ordered by expert, then by token.
  std::vector<Part> received;
  /// [R, 3] for ops::permutation_from_runs(): the order of the received rows by expert, then by rank, then by token.
  std::vector<i32> runs;
  /// Number of rows of each expert on this rank.
  std::vector<i64> rows;

  i64 received_rows() const { return end_of(received); }
  /// Returns true if received rows are already ordered by expert, on every rank.
  bool is_sorted() const { return received.size() == 1; }
};

/// Computes the plan of rank `rank` of the exchange from the `counts` of all its ranks, [ranks, num_experts], as
/// returned by ops::count_choices(). The ranks form `parts` neighborhoods with the same number of experts each; this
/// rank is in neighborhood `part`.
DispatchPlan plan_dispatch(std::span<const i32> counts, i64 num_experts, int rank, int parts, int part);
/// Returns the plan of a rank that sends rows.per_rank rows to each expert, including padding, as do all `ranks`. It
/// has no runs, because the order of the received rows depends on their numbers, which the host does not know.
DispatchPlan plan_padded_dispatch(const ops::PaddedRows& rows, i64 num_experts, i64 ranks, int parts);

/// Expert choices of a rank's tokens, and information about the choices of other ranks, kept so that backward does not
/// repeat the exchange.
struct ExpertChoice {
  Tensor experts;  ///< int32 [T, k]; negative = dropped
  /// Information about the choices of all ranks of the exchange, int32. With all-to-all, number of tokens per expert
  /// [ranks, num_experts]. Otherwise, experts of all tokens [ranks * T, k].
  Tensor gathered_choices;
  i64 num_experts = 0;

  ChoiceSizes sizes() const { return {experts.dim(0), experts.dim(1), num_experts}; }
};

/// Dispatcher of one microbatch. Collective over the exchange; T and k must be the same on each rank.
class TokenDispatcher {
 public:
  virtual ~TokenDispatcher() = default;

  /// Sends tokens [T, h] to their experts; returns the M rows of this rank's experts, in the order of experts. Tokens
  /// may be rows of codes, which padding extends with rows of zeros. Calls `overlap_fn` once.
  virtual Tensor dispatch(const Tensor& tokens, const OverlapFn& overlap_fn) = 0;
  /// Returns the number of rows of each expert of this rank.
  virtual std::span<const i64> rows() const = 0;

  struct Combined {
    Tensor out;    ///< [T, h]
    Tensor saved;  ///< for combine_backward()
    /// Weights where outputs are multiplied by them, for combine_backward(), so that they are sent once.
    Tensor weights;
  };
  /// Returns, for each token, the sum of its experts' outputs y [M, h] weighted by weights [T, k]. May overwrite y.
  /// Calls `overlap_fn` once.
  virtual Combined combine(const Tensor& y, const Tensor& weights, const OverlapFn& overlap_fn) = 0;
  struct Gradients {
    Tensor rows;     ///< [M, h], or their codes
    Tensor weights;  ///< [T, k]
  };
  /// Returns the gradients of combine() given the gradient of its output, and the `saved` and `weights` that it
  /// returned. The gradients of rows are in `encoding`, if it is defined. May overwrite `saved`. Calls `overlap_fn`
  /// once.
  virtual Gradients combine_backward(const Tensor& d_out, const Tensor& saved, const Tensor& weights,
                                     const RowEncoding& encoding, const OverlapFn& overlap_fn) = 0;
  /// Returns the gradient of tokens [T, h] given the gradient of the dispatched rows [M, h]. Calls `overlap_fn` once.
  virtual Tensor dispatch_backward(const Tensor& d_rows, const OverlapFn& overlap_fn) = 0;
};

/// Exchanges the information that a dispatcher needs about the other ranks' choices. Collective.
ExpertChoice exchange_choices(const Tensor& experts, i64 num_experts, const ExpertParallel& parallel);
/// Returns rows [N, h] in `encoding`, or the rows if it is not defined.
Tensor encode_if_defined(const Tensor& rows, const RowEncoding& encoding);
/// Creates a dispatcher. If padded_rows.per_expert is positive, each expert's rows are padded with zeros to this
/// number. All-to-all with padded_rows.per_rank > 0 sends this number of rows to each expert, at least as many as a
/// rank has choices of any expert; otherwise, ranks exchange only rows of tokens. With padding, the host neither reads
/// nor writes values of the device, except for hierarchical dispatch and all-to-all with per_rank = 0.
std::unique_ptr<TokenDispatcher> make_token_dispatcher(const ExpertChoice& choice, const ExpertParallel& parallel,
                                                       const ops::PaddedRows& padded_rows = {});

/// Base of dispatchers that send a token at most once to a rank, which copies it for each of its experts. The rank
/// multiplies results by their weights and adds them, and the sums of all ranks are added on their way back. Gradients
/// are encoded after they were sent, because rounding applies to the products with the weights, which differ between
/// the experts of a token.
class OncePerRankDispatcher : public TokenDispatcher {
 public:
  Tensor dispatch(const Tensor& tokens, const OverlapFn& overlap_fn) final;
  std::span<const i64> rows() const final { return rows_; }
  Combined combine(const Tensor& y, const Tensor& weights, const OverlapFn& overlap_fn) final;
  Gradients combine_backward(const Tensor& d_out, const Tensor& saved, const Tensor& weights,
                             const RowEncoding& encoding, const OverlapFn& overlap_fn) final;
  Tensor dispatch_backward(const Tensor& d_rows, const OverlapFn& overlap_fn) final;

 protected:
  /// Sends rows [T, w], one per token; returns the A rows that this rank received. Calls `overlap_fn` once.
  virtual Tensor send(const Tensor& rows, const OverlapFn& overlap_fn) const = 0;
  /// Returns, for each token, the sum of the rows [A, w] of all ranks. The backward pass of send(). Calls `overlap_fn`
  /// once.
  virtual Tensor return_sums(const Tensor& rows, const OverlapFn& overlap_fn) const = 0;

  Tensor row_sources_;      ///< int32 [M]: received row of each expert's row; negative = padding
  Tensor row_slots_;        ///< int32 [A, k]: expert's rows of each received row; negative = none on this rank
  std::vector<i64> rows_;   ///< number of rows of each expert of this rank
  bool is_padded_ = false;  ///< some rows are padding
};

/// All-gather token dispatcher: all ranks of the exchange receive all tokens, process those of their experts, and
/// reduce-scatter the results. It uses two simple collectives but sends more bytes than all-to-all, unless the number
/// of experts per token is close to the number of ranks.
class AllGatherDispatcher final : public OncePerRankDispatcher {
 public:
  /// The exchange must have more than one rank.
  AllGatherDispatcher(const ExpertChoice& choice, const ExpertParallel& parallel, const ops::PaddedRows& padded_rows);

 private:
  Tensor send(const Tensor& rows, const OverlapFn& overlap_fn) const override;
  Tensor return_sums(const Tensor& rows, const OverlapFn& overlap_fn) const override;

  Communicator& exchange_;
};

/// All-to-all token dispatcher: each token is sent to the ranks of its experts, and the results are sent back. If an
/// expert's width is sharded over several ranks, each of them receives the token and returns a partial sum. With
/// padding, all messages have the same size, and the index tables are computed on the device (drop-and-pad of Megatron
/// Core).
class AllToAllDispatcher final : public TokenDispatcher {
 public:
  AllToAllDispatcher(const ExpertChoice& choice, const ExpertParallel& parallel, const ops::PaddedRows& padded_rows);

  Tensor dispatch(const Tensor& tokens, const OverlapFn& overlap_fn) override;
  std::span<const i64> rows() const override { return plan_.rows; }
  Combined combine(const Tensor& y, const Tensor& weights, const OverlapFn& overlap_fn) override;
  Gradients combine_backward(const Tensor& d_out, const Tensor& saved, const Tensor& weights,
                             const RowEncoding& encoding, const OverlapFn& overlap_fn) override;
  Tensor dispatch_backward(const Tensor& d_rows, const OverlapFn& overlap_fn) override;

 private:
  void make_tables(const ExpertChoice& choice);
  void make_padded_tables(const ExpertChoice& choice, const ops::PaddedRows& padded_rows);
  /// Sends the rows [N, h] of choices, in the order of tokens_, to their experts; returns [M, h] by expert.
  Tensor send_to_experts(const Tensor& choices, const OverlapFn& overlap_fn) const;
  /// Sends rows back to the ranks of their tokens and sums the partial results of expert-tensor-parallel ranks. This is
  /// the backward pass of send_to_experts() and vice versa.
  Tensor return_from_experts(const Tensor& rows, const OverlapFn& overlap_fn) const;
  /// Return the elements of the sent and the received rows, one part per rank of the exchange. Ranks that share an
  /// expert receive the same rows, or rows that are `copy_stride` rows apart.
  std::vector<Part> sent(i64 width, i64 copy_stride) const;
  std::vector<Part> received(i64 width) const { return elements_of(plan_.received, width); }

  ExpertParallel parallel_;
  DispatchPlan plan_;
  bool is_padded_;
  // Tables of the plan on the device. Negative = padding.
  Tensor tokens_, slots_;       // int32 [N]: token of each sent row; [T, k]: sent row of each choice
  Tensor by_expert_, by_rank_;  // order of received rows by expert, and its inverse
  Tensor copies_;               // int32 [N, tp]: rows of the partial sums of each choice; undefined with tp = 1
};

/// Dispatcher decorator that pads every expert's rows to a fixed number with zeros. Padding is not sent. The host needs
/// the number of rows.
class PaddedDispatcher final : public TokenDispatcher {
 public:
  /// `rows` is the padded number of rows per expert; it must be at least the maximum number of rows of `inner`.
  PaddedDispatcher(std::unique_ptr<TokenDispatcher> inner, i64 rows, Device& device);

  Tensor dispatch(const Tensor& tokens, const OverlapFn& overlap_fn) override;
  std::span<const i64> rows() const override { return rows_; }
  Combined combine(const Tensor& y, const Tensor& weights, const OverlapFn& overlap_fn) override;
  Gradients combine_backward(const Tensor& d_out, const Tensor& saved, const Tensor& weights,
                             const RowEncoding& encoding, const OverlapFn& overlap_fn) override;
  Tensor dispatch_backward(const Tensor& d_rows, const OverlapFn& overlap_fn) override;

 private:
  Tensor add_padding(const Tensor& rows) const;
  Tensor remove_padding(const Tensor& rows) const;

  std::unique_ptr<TokenDispatcher> inner_;
  std::vector<i64> rows_;
  Tensor sources_;         // int32 [padded rows]: source row; -1 = padding
  Tensor padded_indices_;  // int32 [received rows]: index among the padded rows
};

/// Assignment of tokens to tensor-parallel ranks for routing if every rank has all tokens, so that each token is routed
/// only once.
class SequenceShard {
 public:
  /// Null: this rank routes all its tokens.
  explicit SequenceShard(Communicator* tp) : tp_(tp && tp->size() > 1 ? tp : nullptr) {}

  /// Return the first row of this rank's part and its size, given `rows` rows in total.
  i64 first_row(i64 rows) const;
  i64 count(i64 rows) const;
  /// Returns this rank's part of x [rows, h], padded with zeros to the same size on every rank.
  Tensor scatter(const Tensor& x) const;
  /// Gathers all `rows` rows from the parts returned by scatter(). Collective.
  Tensor gather(const Tensor& part, i64 rows) const;

 private:
  i64 rows_per_rank(i64 rows) const;

  Communicator* tp_;
};

}  // namespace mcpp
