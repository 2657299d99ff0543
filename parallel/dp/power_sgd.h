// Sums of matrices of gradients by two factors of low rank (PowerSGD, Vogels et al. 2019): what is sent of a matrix
// [rows, columns] is rank x (rows + columns) numbers. What a rank's gradient had and the sum has not, it adds to its
// next one (error feedback), so that nothing is lost but put off.
#pragma once
#include <vector>

#include "parallel/dp/store.h"

namespace mcpp {

/// Whether a linear map of this shape is summed so: where it is a matrix, and at most half as much is sent.
bool is_low_rank(const Shape& shape, i64 rank);
/// Whether this parameter is. Of embeddings, the output layer and routers all is sent: each row has a gradient by
/// tokens of its own, so that few directions say little of it.
bool is_low_rank(const Param& param, i64 rank);

class PowerSgd {
 public:
  PowerSgd(const StoreContext& context, DType dtype, i64 rank);

  /// Starts the sum over groups.shard of the gradients of a bucket, `grads`, all of which every rank gets in their
  /// place: matrices by factors, with M = gradient + error, P = sum of M Q, made orthonormal, Q = sum of M^T P, P Q^T
  /// the sum, and the new error M - P Q^T / ranks; all else as it is. Each bucket once between two end_step().
  Work sum(std::size_t bucket, const Tensor& grads);
  /// Remembers the new errors and factors where the step was taken, as `factor`, fp64 [1], being finite says.
  void end_step(const Tensor& factor);

  std::span<const PowerSgdState> states() const { return states_; }

 private:
  struct Matrix {
    std::size_t state;
    i64 begin;  // of its gradient, in the bucket
    i64 rows, columns;
  };
  /// A range of a bucket that is summed as it is.
  struct Rest {
    i64 begin, count;
  };
  struct Layout {
    std::vector<Matrix> matrices;
    std::vector<Rest> rest;
    i64 rest_elements = 0, left_elements = 0, right_elements = 0;  // of the rest, of all P, and of all Q
  };
  class Sum;

  void add(std::size_t bucket, std::size_t param);

  StoreContext context_;
  i64 rank_;
  std::vector<PowerSgdState> states_, next_;  // next_: of the step that is not decided yet
  std::vector<Layout> layouts_;               // by bucket
};

}  // namespace mcpp
