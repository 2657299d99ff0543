// The communication at the borders of a tensor-parallel region. Names are Megatron-LM's; each is the backward of
// another one.
#pragma once
#include <functional>
#include <string>
#include <utility>

#include "comm/communicator.h"
#include "nn/pass.h"
#include "nn/placement.h"

namespace mcpp {

/// A tensor that is on its way.
class Pending {
 public:
  Pending(Tensor tensor, Work work) : tensor_(std::move(tensor)), work_(std::move(work)) {}
  Tensor wait() {
    work_.wait();
    return std::move(tensor_);
  }

 private:
  Tensor tensor_;
  Work work_;
};

/// The sum over the group, written over x itself.
Pending reduce_from_tensor_parallel_region(Tensor x, Communicator& tp);
/// [s / tp, ...] -> [s, ...]: the parts of the sequence of all ranks.
Pending gather_from_sequence_parallel_region(const Tensor& x, Communicator& tp);
/// [s, ...] -> [s / tp, ...]: this rank's part of the sequence of the sum over the group.
Pending reduce_scatter_to_sequence_parallel_region(const Tensor& x, Communicator& tp);
/// [.., n / tp] -> [.., n]: the columns of all ranks side by side.
Tensor gather_from_tensor_parallel_region(const Tensor& x, Communicator& tp);
/// [.., n] -> [.., n / tp]: this rank's columns.
Tensor scatter_to_tensor_parallel_region(const Tensor& x, Communicator& tp);

/// How activations enter and leave a tensor-parallel region, in which each rank has a part of the heads, of the MLP's
/// width or of the vocabulary. Outside of it every rank has all of x [s, b, h] (Shoeybi et al. 2019), or with sequence
/// parallelism its part [s / tp, b, h] (Korthikanti et al. 2022). A group of one rank sends nothing.
class TensorParallelRegion {
 public:
  TensorParallelRegion(Communicator& tp, bool sequence_parallel)
      : tp_(tp), sequence_parallel_(sequence_parallel && tp.size() > 1) {}

  Communicator& tp() const { return tp_; }
  bool sequence_parallel() const { return sequence_parallel_; }
  /// How activations lie outside of the region: what whole() takes and sum() gives.
  ActivationPlacement outside() const {
    return sequence_parallel_ ? ActivationPlacement::Sequence : ActivationPlacement::Whole;
  }
  /// Refuses activations that whole() does not take; `user` is named.
  void check_entry(ActivationPlacement x, const std::string& user) const;

  /// The whole sequence of x: x itself, or gathered.
  Pending whole(const Tensor& x) const;
  /// The sum over ranks of the partial results x [s, b, h], whole or this rank's part of the sequence. x may be
  /// overwritten.
  Pending sum(const Tensor& x) const;

  /// The backward pass of products of whole(x) with weights split by their outputs; returns dx. Each communication is
  /// hidden by a product: the gathering of x by that for the input gradient, the summing of dx by that for the weights.
  Tensor backward(const Tensor& x, Pass& pass, const std::function<Tensor()>& input_gradient,
                  std::function<void(const Tensor& whole_x)> weight_gradient) const;

 private:
  Communicator& tp_;
  bool sequence_parallel_;
};

}  // namespace mcpp
