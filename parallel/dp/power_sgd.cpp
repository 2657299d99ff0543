#include "parallel/dp/power_sgd.h"

#include <memory>

#include "tensor/ops/low_rank.h"
#include "tensor/ops/ops.h"

namespace mcpp {

bool is_low_rank(const Shape& shape, i64 rank) {
  if (rank == 0 || shape.size() < 2 || numel(shape) == 0) return false;
  const i64 columns = shape.back(), rows = numel(shape) / columns;
  return 2 * rank * (rows + columns) <= rows * columns;
}

bool is_low_rank(const Param& param, i64 rank) {
  return !param.matrices.empty() && !param.has_partial_slices() && is_low_rank(param.box.shape, rank);
}

PowerSgd::PowerSgd(const StoreContext& context, DType dtype, i64 rank)
    : context_(context), rank_(rank), layouts_(context.plan.buckets.size()) {
  for (std::size_t b = 0; b < layouts_.size(); ++b) {
    const Bucket& bucket = context_.plan.buckets[b];
    for (std::size_t i = bucket.first_param; i < bucket.end_param; ++i) add_param(b, i);
  }
  next_ = states_;
  for (std::vector<PowerSgdState>* states : {&states_, &next_}) {
    for (PowerSgdState& state : *states) {
      const Shape& shape = state.param->box.shape;
      state.error = Tensor::zeros(shape, dtype, context_.device, MemoryClass::OptimizerState);
      state.factor = Tensor::zeros({shape.back(), rank_}, dtype, context_.device, MemoryClass::OptimizerState);
      ops::orthonormalize(state.factor);
    }
  }
}

void PowerSgd::add_param(std::size_t bucket, std::size_t param) {
  Layout& layout = layouts_[bucket];
  Param& p = *context_.params[param];
  const i64 begin = context_.plan.offsets[param] - context_.plan.buckets[bucket].begin;
  if (!is_low_rank(p, rank_)) {
    layout.uncompressed.push_back({begin, p.numel()});
    layout.uncompressed_elements += p.numel();
    return;
  }
  const i64 columns = p.box.shape.back(), rows = p.numel() / columns;
  layout.matrices.push_back({states_.size(), begin, rows, columns});
  layout.left_elements += rows * rank_;
  layout.right_elements += columns * rank_;
  states_.push_back({&p, {}, {}});
}

/// Sum of one bucket in flight.
class PowerSgd::Sum {
 public:
  Sum(PowerSgd& owner, const Layout& layout, const Tensor& grads)
      : owner_(owner),
        layout_(layout),
        grads_(grads),
        left_(make_buffer(layout.left_elements + layout.uncompressed_elements)) {
    for (const Matrix& m : layout_.matrices) {
      const PowerSgdState& state = owner_.states_[m.state];
      Tensor sent = next_error(m), p = left(m);
      ops::copy(state.error, sent);
      ops::add_to(gradient(m), sent);  // M
      ops::matmul(sent, state.factor, p);
    }
    for_each_uncompressed([](Tensor& gradient, Tensor& sent) { ops::copy(gradient, sent); });
    work_ = group().all_reduce(left_, ReduceOp::Sum);
  }

  void finish() {
    work_.wait();
    for_each_uncompressed([](Tensor& gradient, Tensor& sent) { ops::copy(sent, gradient); });
    Tensor right = make_buffer(layout_.right_elements);
    i64 offset = 0;
    std::vector<Tensor> factors;
    for (const Matrix& m : layout_.matrices) {
      Tensor p = left(m), q = right.flat(offset, m.columns * owner_.rank_).view({m.columns, owner_.rank_});
      ops::orthonormalize(p);
      ops::matmul(next_error(m), p, q, {.transpose_a = true});
      factors.push_back(q);
      offset += q.numel();
    }
    group().all_reduce(right, ReduceOp::Sum).wait();
    for (std::size_t i = 0; i < factors.size(); ++i) write_sum(layout_.matrices[i], factors[i]);
  }

 private:
  Communicator& group() const { return owner_.context_.groups.shard; }
  Tensor make_buffer(i64 count) const {
    return Tensor::empty({count}, grads_.dtype(), owner_.context_.device, MemoryClass::Grads);
  }
  Tensor gradient(const Matrix& m) const { return grads_.flat(m.begin, m.rows * m.columns).view({m.rows, m.columns}); }
  Tensor next_error(const Matrix& m) const { return owner_.next_[m.state].error.view({m.rows, m.columns}); }
  /// Returns the matrix's P, which is stored after the P of earlier matrices.
  Tensor left(const Matrix& m) const {
    i64 offset = 0;
    for (const Matrix& previous : layout_.matrices) {
      if (previous.state == m.state) break;
      offset += previous.rows * owner_.rank_;
    }
    return left_.flat(offset, m.rows * owner_.rank_).view({m.rows, owner_.rank_});
  }
  /// Calls f(part of the bucket, corresponding part of the message).
  template <class F>
  void for_each_uncompressed(const F& f) {
    i64 offset = layout_.left_elements;
    for (const UncompressedRange& uncompressed : layout_.uncompressed) {
      Tensor range_grads = grads_.flat(uncompressed.begin, uncompressed.count),
             sent = left_.flat(offset, uncompressed.count);
      f(range_grads, sent);
      offset += uncompressed.count;
    }
  }
  void write_sum(const Matrix& m, const Tensor& q) {
    Tensor p = left(m), sum = gradient(m), error = next_error(m);
    ops::matmul(p, q, sum, {.transpose_b = true});
    ops::copy(q, owner_.next_[m.state].factor);
    ops::scale(p, -1.0 / group().size());
    ops::matmul(p, q, error, {.transpose_b = true, .beta = 1});
  }

  PowerSgd& owner_;
  const Layout& layout_;
  Tensor grads_;
  Tensor left_;  // all P, followed by the uncompressed ranges
  Work work_;
};

Work PowerSgd::sum(std::size_t bucket, const Tensor& grads) {
  const auto sum = std::make_shared<Sum>(*this, layouts_[bucket], grads);
  return Work([sum] { sum->finish(); });
}

void PowerSgd::end_step(const Tensor& factor) {
  for (std::size_t i = 0; i < states_.size(); ++i) {
    ops::copy_if_finite(next_[i].error, states_[i].error, factor);
    ops::copy_if_finite(next_[i].factor, states_[i].factor, factor);
  }
}

}  // namespace mcpp
