#include "parallel/tp/mappings.h"

#include <algorithm>
#include <vector>

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

namespace {

/// Largest number of chunks of a sum. The communication of the last one is exposed, but smaller GEMMs are slower.
constexpr i64 kMaxChunks = 4;
/// Smallest number of rows of a GEMM that computes some of the rows. With fewer, CPUs may use kernels that sum in a
/// different order (kFewRowsOfLargeMatrix in tensor/cpu/gemm/gemm.h).
constexpr i64 kMinRows = 32;

/// Returns the number of chunks into which `positions` with `rows` rows each are divided.
i64 count_chunks(i64 positions, i64 rows) {
  i64 chunks = std::clamp<i64>(positions, 1, kMaxChunks);
  while (chunks > 1 && positions / chunks * rows < kMinRows) --chunks;
  return chunks;
}

}  // namespace

Shape TensorParallelRegion::full_shape(const Tensor& x, i64 columns) const {
  Shape shape = x.shape();
  if (sequence_parallel_) shape.front() *= tp_.size();
  shape.back() = columns;
  return shape;
}

Tensor TensorParallelRegion::gather_and_multiply(const Tensor& x, const ConsumeRows& multiply) const {
  PendingTensor pending = gather_sequence(x);
  const i64 own = x.dim(0);
  const bool is_split = overlaps_ && sequence_parallel_ && x.numel() / x.dim(-1) >= kMinRows;
  if (is_split) multiply(x, tp_.rank() * own);
  Tensor full = pending.wait();
  if (!is_split) {
    multiply(full, 0);
    return full;
  }
  const i64 before = tp_.rank() * own, after = before + own;
  if (before > 0) multiply(full.slice(0, before), 0);
  if (after < full.dim(0)) multiply(full.slice(after, full.dim(0)), after);
  return full;
}

Tensor TensorParallelRegion::multiply_and_sum(const Tensor& like, const Shape& shape,
                                              const ProduceRows& multiply) const {
  const i64 parts = sequence_parallel_ ? tp_.size() : 1;
  MCPP_CHECK(shape.front() % parts == 0, shape.front(), " positions cannot be divided by ", parts, " ranks");
  const i64 positions = shape.front() / parts, rows = shape.size() > 2 ? shape[1] : 1;
  const i64 chunks = overlaps_ ? count_chunks(positions, rows) : 1;
  if (chunks == 1) {
    Tensor y = Tensor::like(like, shape);
    multiply(y, 0);
    return sum(y).wait();
  }
  Shape own = shape;
  own.front() = positions;
  Tensor result = Tensor::like(like, own);
  return sequence_parallel_ ? reduce_scatter_in_chunks(std::move(result), chunks, multiply)
                            : reduce_in_chunks(std::move(result), chunks, multiply);
}

/// Sums y, which `multiply` computes in chunks, in place.
Tensor TensorParallelRegion::reduce_in_chunks(Tensor y, i64 chunks, const ProduceRows& multiply) const {
  const i64 positions = y.dim(0);
  std::vector<PendingTensor> pending;
  for (i64 chunk = 0; chunk < chunks; ++chunk) {
    const i64 first = positions * chunk / chunks;
    Tensor rows = y.slice(first, positions * (chunk + 1) / chunks);
    multiply(rows, first);
    pending.push_back(reduce_from_tensor_parallel_region(std::move(rows), tp_));
  }
  for (PendingTensor& sum : pending) sum.wait();
  return y;
}

/// Sets `part`, this rank's part of the sequence. A chunk has the same positions of the part of each rank.
Tensor TensorParallelRegion::reduce_scatter_in_chunks(Tensor part, i64 chunks, const ProduceRows& multiply) const {
  const i64 positions = part.dim(0), ranks = tp_.size();
  const Tensor all_chunks = Tensor::like(part, with_dim(part, 0, positions * ranks));
  std::vector<Work> works;
  for (i64 chunk = 0; chunk < chunks; ++chunk) {
    const i64 first = positions * chunk / chunks, end = positions * (chunk + 1) / chunks;
    const i64 count = end - first;
    const Tensor partial = all_chunks.slice(first * ranks, end * ranks);
    for (i64 rank = 0; rank < ranks; ++rank) {
      Tensor rows = partial.slice(rank * count, (rank + 1) * count);
      multiply(rows, rank * positions + first);
    }
    Tensor own = part.slice(first, end);
    works.push_back(tp_.reduce_scatter(partial, own));
  }
  for (Work& work : works) work.wait();
  return part;
}

Tensor TensorParallelRegion::backward(const Tensor& x, MicrobatchContext& context, const ProduceRows& input_gradient,
                                      std::function<void(const Tensor& full_x)> weight_gradient) const {
  const Shape shape = full_shape(x, x.dim(-1));
  if (context.delay_wgrad_compute) {
    // A delayed weight gradient keeps only this rank's part of x: schedules that hold many microbatches need the memory
    // more than the overlap. All ranks of the group run the same schedule, so they gather in the same order.
    context.run_or_delay_wgrad(
        [this, x, weight_gradient = std::move(weight_gradient)] { weight_gradient(gather_sequence(x).wait()); });
    return multiply_and_sum(x, shape, input_gradient);
  }
  PendingTensor full_x = gather_sequence(x);
  Tensor partial = Tensor::like(x, shape);
  input_gradient(partial, 0);
  PendingTensor dx = sum(partial);
  partial = {};
  weight_gradient(full_x.wait());
  return dx.wait();
}

}  // namespace mcpp
