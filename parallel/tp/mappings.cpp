#include "parallel/tp/mappings.h"

#include "tensor/ops/ops.h"

namespace mcpp {
namespace {

Shape with_dim(const Tensor& x, std::size_t axis, i64 size) {
  Shape shape = x.shape();
  shape[axis] = size;
  return shape;
}

/// Returns a view of block `index` of the columns of full [.., n], where a block has `columns` columns.
Heads column_block(const Tensor& full, i64 columns, i64 index) {
  const i64 n = full.dim(-1);
  return slice_heads(dense_heads(full.view({full.numel() / n, 1, n}), n / columns), index, 1);
}

}  // namespace

PendingTensor reduce_from_tensor_parallel_region(Tensor x, Communicator& tp) {
  Work work = tp.all_reduce(x, ReduceOp::Sum);
  return {std::move(x), std::move(work)};
}

PendingTensor gather_from_sequence_parallel_region(const Tensor& x, Communicator& tp) {
  Tensor full = Tensor::like(x, with_dim(x, 0, x.dim(0) * tp.size()));
  Work work = tp.all_gather(x, full);
  return {std::move(full), std::move(work)};
}

PendingTensor reduce_scatter_to_sequence_parallel_region(const Tensor& x, Communicator& tp) {
  MCPP_CHECK(x.dim(0) % tp.size() == 0, "a sequence of ", x.dim(0), " is not divisible by ", tp.size(), " ranks");
  Tensor part = Tensor::like(x, with_dim(x, 0, x.dim(0) / tp.size()));
  Work work = tp.reduce_scatter(x, part);
  return {std::move(part), std::move(work)};
}

Tensor gather_from_tensor_parallel_region(const Tensor& x, Communicator& tp) {
  if (tp.size() == 1) return x;
  const i64 columns = x.dim(-1), count = x.numel();
  Tensor blocks = Tensor::like(x, {tp.size() * count});
  tp.all_gather(x, blocks).wait();
  Tensor y = Tensor::like(x, with_dim(x, x.shape().size() - 1, columns * tp.size()));
  for (i64 rank = 0; rank < tp.size(); ++rank) {
    Heads to = column_block(y, columns, rank);
    ops::copy_heads(column_block(blocks.flat(rank * count, count).view(x.shape()), columns, 0), to);
  }
  return y;
}

Tensor scatter_to_tensor_parallel_region(const Tensor& x, Communicator& tp) {
  if (tp.size() == 1) return x;
  MCPP_CHECK(x.dim(-1) % tp.size() == 0, x.dim(-1), " columns over ", tp.size(), " ranks");
  Tensor y = Tensor::like(x, with_dim(x, x.shape().size() - 1, x.dim(-1) / tp.size()));
  Heads to = column_block(y, y.dim(-1), 0);
  ops::copy_heads(column_block(x, y.dim(-1), tp.rank()), to);
  return y;
}

void TensorParallelRegion::check_entry(ActivationPlacement x, const std::string& user) const {
  MCPP_CHECK(x == outer_placement(), user, " expects activations that are ", name_of(outer_placement()),
             ", but receives activations that are ", name_of(x));
}

PendingTensor TensorParallelRegion::gather_sequence(const Tensor& x) const {
  if (!sequence_parallel_) return {x, Work()};
  return gather_from_sequence_parallel_region(x, tp_);
}

PendingTensor TensorParallelRegion::sum(const Tensor& x) const {
  if (sequence_parallel_) return reduce_scatter_to_sequence_parallel_region(x, tp_);
  if (tp_.size() == 1) return {x, Work()};
  return reduce_from_tensor_parallel_region(x, tp_);
}

Tensor TensorParallelRegion::backward(const Tensor& x, MicrobatchContext& context,
                                      const std::function<Tensor()>& input_gradient,
                                      std::function<void(const Tensor& full_x)> weight_gradient) const {
  if (context.delay_wgrad_compute) {
    // A delayed weight gradient keeps only this rank's part of x: schedules that hold many microbatches need the memory
    // more than the overlap. All ranks of the group run the same schedule, so they gather in the same order.
    context.run_or_delay_wgrad(
        [this, x, weight_gradient = std::move(weight_gradient)] { weight_gradient(gather_sequence(x).wait()); });
    return sum(input_gradient()).wait();
  }
  PendingTensor full_x = gather_sequence(x);
  PendingTensor dx = sum(input_gradient());
  weight_gradient(full_x.wait());
  return dx.wait();
}

}  // namespace mcpp
