// Collectives at the boundaries of a tensor-parallel region. Functions are named as in Megatron-LM. Each function is
// the backward pass of another of these functions.
#pragma once
#include <functional>
#include <string>
#include <utility>

#include "comm/communicator.h"
#include "nn/microbatch_context.h"
#include "nn/param.h"
#include "nn/placement.h"

namespace mcpp {

/// Tensor whose collective is in flight.
class PendingTensor {
 public:
  PendingTensor(Tensor tensor, Work work) : tensor_(std::move(tensor)), work_(std::move(work)) {}
  Tensor wait() {
    work_.wait();
    return std::move(tensor_);
  }

 private:
  Tensor tensor_;
  Work work_;
};

/// Sums x over the group in place.
PendingTensor reduce_from_tensor_parallel_region(Tensor x, Communicator& tp);
/// Gathers [s / tp, ...] -> [s, ...] along the sequence.
PendingTensor gather_from_sequence_parallel_region(const Tensor& x, Communicator& tp);
/// Reduce-scatters [s, ...] -> [s / tp, ...] along the sequence.
PendingTensor reduce_scatter_to_sequence_parallel_region(const Tensor& x, Communicator& tp);
/// Gathers [.., n / tp] -> [.., n] along the columns.
Tensor gather_from_tensor_parallel_region(const Tensor& x, Communicator& tp);
/// Returns this rank's columns, [.., n] -> [.., n / tp].
Tensor scatter_to_tensor_parallel_region(const Tensor& x, Communicator& tp);

/// Entry to and exit from a tensor-parallel region, inside which heads, the MLP width or the vocabulary are sharded.
/// Outside of it activations x [s, b, h] are replicated (Shoeybi et al. 2019) or, with sequence parallelism, sharded as
/// [s / tp, b, h] (Korthikanti et al. 2022). A group of one rank does not communicate.
class TensorParallelRegion {
 public:
  /// `overlaps`: collectives run while the GEMMs that need or produce their rows are computed (tp_comm_overlap).
  TensorParallelRegion(Communicator& tp, bool sequence_parallel, bool overlaps = false)
      : tp_(tp), sequence_parallel_(sequence_parallel && tp.size() > 1), overlaps_(overlaps && tp.size() > 1) {}

  Communicator& tp() const { return tp_; }
  bool sequence_parallel() const { return sequence_parallel_; }
  /// Returns the placement of activations outside the region, i.e. of the input of gather_sequence() and the output of
  /// sum().
  ActivationPlacement outer_placement() const {
    return sequence_parallel_ ? ActivationPlacement::SequenceSharded : ActivationPlacement::Replicated;
  }
  /// Throws an error that names `user` unless gather_sequence() accepts such activations.
  void check_entry(ActivationPlacement x, const std::string& user) const;

  /// Returns the full sequence of x: x itself, or the gathered x.
  PendingTensor gather_sequence(const Tensor& x) const;
  /// Sums the partial results x [s, b, h] over the ranks; returns the replicated sum or this rank's part of the
  /// sequence. May overwrite x.
  PendingTensor sum(const Tensor& x) const;

  // GEMMs at the borders of the region. A row of the result must depend only on the same row of the input, because a
  // region that overlaps calls them for some rows at a time. Positions refer to the full sequence.

  /// GEMM of `x`, positions [first, first + x.dim(0)). Must not keep `x`.
  using ConsumeRows = std::function<void(const Tensor& x, i64 first)>;
  /// GEMM that sets every element of `y`, positions [first, first + y.dim(0)) of its result. `y` is uninitialized.
  using ProduceRows = std::function<void(Tensor& y, i64 first)>;

  /// Calls `multiply` once for each row of gather_sequence(x). If the region overlaps, calls it for this rank's rows
  /// while the others are gathered, and then for those before and after them. Returns the full sequence. Collective.
  Tensor gather_and_multiply(const Tensor& x, const ConsumeRows& multiply) const;
  /// Returns sum(y) of a tensor y of this shape, with the dtype and device of `like`, that `multiply` computes. If the
  /// region overlaps, calls it for chunks of rows, in an order that is the same on all ranks, and sums each chunk while
  /// the next one is computed. Collective.
  Tensor multiply_and_sum(const Tensor& like, const Shape& shape, const ProduceRows& multiply) const;

  /// Returns the shape of gather_sequence(x), with `columns` columns.
  Shape full_shape(const Tensor& x, i64 columns) const;

  /// Runs the backward pass of GEMMs of gather_sequence(x) with weights sharded along their outputs. Returns dx.
  /// Overlaps each collective with a GEMM: gathering x with the input gradient, and reducing dx with the weight
  /// gradient or, if that is delayed and the region overlaps, with the input gradient.
  Tensor backward(const Tensor& x, MicrobatchContext& context, const ProduceRows& input_gradient,
                  std::function<void(const Tensor& full_x)> weight_gradient) const;

 private:
  Tensor reduce_in_chunks(Tensor y, i64 chunks, const ProduceRows& multiply) const;
  Tensor reduce_scatter_in_chunks(Tensor part, i64 chunks, const ProduceRows& multiply) const;

  Communicator& tp_;
  bool sequence_parallel_, overlaps_;
};

/// Returns positions [first, first + rows.dim(0)) of x.
inline Tensor rows_like(const Tensor& rows, const Tensor& x, i64 first) {
  return x.slice(first, first + rows.dim(0));
}

// Slice of a global tensor held by one rank of a group.

/// Returns this rank's box of an even split of `global` along `axis` over the ranks of `group`.
inline Box split_box(const Shape& global, int axis, const Communicator& group) {
  const i64 size = global[static_cast<std::size_t>(axis)];
  MCPP_CHECK(size % group.size() == 0, "axis ", axis, " of ", global, " is not divisible by ", group.size(), " ranks");
  const i64 part = size / group.size();
  return slab(global, static_cast<std::size_t>(axis), part * group.rank(), part);
}

}  // namespace mcpp
