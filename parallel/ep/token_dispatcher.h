// Tokens on their way to their experts and back. Forward: dispatch(), the experts, combine(); backward:
// combine_backward(), the experts' backward, dispatch_backward().
#pragma once
#include <functional>
#include <memory>
#include <span>

#include "parallel/ep/expert_parallel.h"

namespace mcpp {

/// The experts of a rank's tokens, and what ranks told one another of theirs, so that it need not be asked again in
/// backward.
struct ExpertChoice {
  Tensor experts;  ///< int32 [T, k]; negative = none, as it was dropped
  /// int32, rank after rank of the exchange: how many tokens each expert gets, [ranks, num_experts]; where all tokens
  /// go to all ranks the experts of each, [ranks * T, k].
  Tensor told;
  i64 num_experts = 0;
};

/// What a rank does while rows travel.
using Meanwhile = std::function<void()>;

/// Of one microbatch. All ranks of the exchange call the same; T and k are the same on each.
class TokenDispatcher {
 public:
  virtual ~TokenDispatcher() = default;

  /// Tokens [T, h] to the M rows that this rank's experts take, one expert after another. Calls `meanwhile` once.
  virtual Tensor dispatch(const Tensor& tokens, const Meanwhile& meanwhile) = 0;
  /// How many each of its experts takes.
  virtual std::span<const i64> rows() const = 0;

  struct Combined {
    Tensor out;   ///< [T, h]
    Tensor kept;  ///< for combine_backward()
  };
  /// The sum of what its experts make of each token, y [M, h] on the ranks that have them, times their weights [T, k].
  /// y's memory may be used.
  virtual Combined combine(const Tensor& y, const Tensor& weights) = 0;
  struct Gradients {
    Tensor rows;     ///< [M, h]
    Tensor weights;  ///< [T, k]
  };
  /// From the gradient of what combine() gave. The memory of `kept` may be used.
  virtual Gradients combine_backward(const Tensor& d_out, const Tensor& kept, const Tensor& weights) = 0;
  /// The gradient of tokens [T, h] from that of dispatch()ed rows [M, h]. Calls `meanwhile` once.
  virtual Tensor dispatch_backward(const Tensor& d_rows, const Meanwhile& meanwhile) = 0;
};

/// Asks the other ranks for what a dispatcher needs of theirs.
ExpertChoice agree_on(const Tensor& experts, i64 num_experts, const ExpertParallel& parallel);
/// Each expert works on `padded_rows` rows, of which those that no token takes are zeros; 0 = on those that come.
std::unique_ptr<TokenDispatcher> make_token_dispatcher(const ExpertChoice& choice, const ExpertParallel& parallel,
                                                       i64 padded_rows);

}  // namespace mcpp
