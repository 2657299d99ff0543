// Transfer of tokens to their experts and back. Forward: dispatch(), the experts, combine(); backward:
// combine_backward(), the experts' backward, dispatch_backward().
#pragma once
#include <functional>
#include <memory>
#include <span>

#include "parallel/ep/expert_parallel.h"

namespace mcpp {

/// Expert choices of a rank's tokens and the information about other ranks' choices, kept so that backward need not
/// exchange it again.
struct ExpertChoice {
  Tensor experts;  ///< int32 [T, k]; negative = dropped
  /// int32, by rank of the exchange. All-to-all: number of tokens per expert, [ranks, num_experts]. All-gather: the
  /// experts of all tokens, [ranks * T, k].
  Tensor gathered_choices;
  i64 num_experts = 0;
};

/// Work that a rank overlaps with communication.
using OverlapFn = std::function<void()>;

/// Dispatcher of one microbatch. Collective over the exchange; T and k must be the same on each rank.
class TokenDispatcher {
 public:
  virtual ~TokenDispatcher() = default;

  /// Sends tokens [T, h] to their experts; returns the M rows of this rank's experts, one expert after another. Calls
  /// `overlap_fn` once.
  virtual Tensor dispatch(const Tensor& tokens, const OverlapFn& overlap_fn) = 0;
  /// Returns the number of rows of each expert of this rank.
  virtual std::span<const i64> rows() const = 0;

  struct Combined {
    Tensor out;   ///< [T, h]
    Tensor kept;  ///< saved for combine_backward()
  };
  /// Returns, for each token, the sum of its experts' outputs y [M, h] weighted by weights [T, k]. May overwrite y.
  virtual Combined combine(const Tensor& y, const Tensor& weights) = 0;
  struct Gradients {
    Tensor rows;     ///< [M, h]
    Tensor weights;  ///< [T, k]
  };
  /// Returns the gradients of combine() given that of its output. May overwrite `kept`.
  virtual Gradients combine_backward(const Tensor& d_out, const Tensor& kept, const Tensor& weights) = 0;
  /// Returns the gradient of tokens [T, h] given that of the dispatched rows [M, h]. Calls `overlap_fn` once.
  virtual Tensor dispatch_backward(const Tensor& d_rows, const OverlapFn& overlap_fn) = 0;
};

/// Exchanges the information that a dispatcher needs about the other ranks' choices. Collective.
ExpertChoice exchange_choices(const Tensor& experts, i64 num_experts, const ExpertParallel& parallel);
/// Creates a dispatcher. Each expert's rows are padded with zeros to `padded_rows`; 0 = no padding.
std::unique_ptr<TokenDispatcher> make_token_dispatcher(const ExpertChoice& choice, const ExpertParallel& parallel,
                                                       i64 padded_rows);

}  // namespace mcpp
