#include "parallel/dp/store.h"

#include "parallel/dp/compressed_reduce.h"
#include "tensor/ops/ops.h"

namespace mcpp {

Work StoreContext::reduce_scatter(const Tensor& full, Tensor& own) const {
  // A single rank sends nothing.
  if (grad_reduce_format != GradReduceFormat::Full && groups.shard.size() > 1)
    return compressed_reduce_scatter(groups, grad_reduce_format, full, own);
  return groups.shard.reduce_scatter(full, own);
}

void StoreContext::make_views(std::size_t bucket, const Tensor& full, Tensor Param::*member) const {
  const Bucket& b = plan.buckets[bucket];
  for (std::size_t i = b.first_param; i < b.end_param; ++i) {
    params[i]->*member = full.flat(plan.offsets[i] - b.begin, params[i]->numel()).view(params[i]->box.shape);
  }
}

void StoreContext::drop_views(std::size_t bucket, Tensor Param::*member) const {
  const Bucket& b = plan.buckets[bucket];
  for (std::size_t i = b.first_param; i < b.end_param; ++i) params[i]->*member = Tensor();
}

void StoreContext::zero_padding(std::size_t bucket, const Tensor& full) const {
  const Bucket& b = plan.buckets[bucket];
  for (std::size_t i = b.first_param; i < b.end_param; ++i) {
    const i64 begin = plan.offsets[i] + params[i]->numel(), end = i + 1 < b.end_param ? plan.offsets[i + 1] : b.end;
    Tensor padding = full.flat(begin - b.begin, end - begin);
    ops::fill_zero(padding);
  }
}

void StoreContext::zero_missing_grads(std::size_t bucket) const {
  const Bucket& b = plan.buckets[bucket];
  for (std::size_t i = b.first_param; i < b.end_param; ++i) zero_missing_grad(*params[i]);
}

void zero_missing_grad(Param& param) {
  if (param.has_grad()) return;
  param.add_grad([](Tensor& sum, float) { ops::fill_zero(sum); });
}

}  // namespace mcpp
