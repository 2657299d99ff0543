// Low-rank compression of gradient sums (PowerSGD, Vogels et al. 2019): a matrix [rows, columns] is sent as rank x
// (rows + columns) elements. The part of a rank's gradient that the sum omits is added to the rank's next gradient
// (error feedback), so it is delayed, not lost.
#pragma once
#include <vector>

#include "parallel/dp/store.h"

namespace mcpp {

/// Returns true if gradients of this shape are compressed: matrices for which compression at least halves the bytes
/// sent.
bool is_low_rank(const Shape& shape, i64 rank);
/// Returns true if this parameter is compressed. Embeddings, the output layer and routers are not: each row gets its
/// gradient from different tokens, so a low rank does not represent them. Nor are weights with slices that are Partial
/// along tp: each of the ranks that share a slice would have its own error, and a checkpoint stores one per slice.
bool is_low_rank(const Param& param, i64 rank);

class PowerSgd {
 public:
  PowerSgd(const StoreContext& context, DType dtype, i64 rank);

  /// Starts summing the gradients of a bucket over groups.shard, in place on every rank. Matrices are summed as
  /// factors: with M = gradient + error, P = orthonormalized sum of M Q, Q = sum of M^T P, the sum is P Q^T and the new
  /// error M - P Q^T / ranks. Everything else is summed uncompressed. Call it once per bucket between two calls of
  /// end_step().
  Work sum(std::size_t bucket, const Tensor& grads);
  /// Commits the new errors and factors if `factor`, fp64 [1], is finite, i.e. the step was not skipped.
  void end_step(const Tensor& factor);

  std::span<const PowerSgdState> states() const { return states_; }

 private:
  struct Matrix {
    std::size_t state;
    i64 begin;  // offset of its gradient in the bucket
    i64 rows, columns;
  };
  /// Range of a bucket that is summed uncompressed.
  struct UncompressedRange {
    i64 begin, count;
  };
  struct Layout {
    std::vector<Matrix> matrices;
    std::vector<UncompressedRange> uncompressed;
    i64 uncompressed_elements = 0, left_elements = 0,
        right_elements = 0;  // elements of all uncompressed ranges, of all P and of all Q
  };
  class Sum;

  void add_param(std::size_t bucket, std::size_t param);

  StoreContext context_;
  i64 rank_;
  std::vector<PowerSgdState> states_, next_;  // next_: states of the step that is not committed yet
  std::vector<Layout> layouts_;               // by bucket
};

}  // namespace mcpp
