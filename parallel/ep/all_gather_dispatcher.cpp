#include "parallel/ep/all_gather_dispatcher.h"

#include "tensor/ops/ops.h"
#include "tensor/ops/routing_tables.h"
#include "tensor/transfer.h"

namespace mcpp {

AllGatherDispatcher::AllGatherDispatcher(const ExpertChoice& choice, const ExpertParallel& parallel)
    : parallel_(parallel) {
  Device& device = choice.experts.device();
  const i64 own = choice.num_experts / parallel_.ep;
  const ExpertRange local_experts{own * parallel_.ep_rank, own};  // experts outside this range are ignored
  Tensor counts = Tensor::empty({own}, DType::I32, device);
  ops::count_choices(choice.gathered_choices, local_experts, counts);
  plan_ = plan_dispatch(read_values<i32>(counts), own, 0, 1, 0);
  tokens_ = Tensor::empty({plan_.choices}, DType::I32, device);
  slots_ = Tensor::like(choice.gathered_choices);
  ops::sort_choices(choice.gathered_choices, local_experts, tokens_, slots_);
}

Tensor AllGatherDispatcher::all(const Tensor& own, const OverlapFn& overlap_fn) const {
  Tensor whole = Tensor::like(own, {own.dim(0) * parallel_.exchange->size(), own.dim(1)});
  Work gather = parallel_.exchange->all_gather(own, whole);
  overlap_fn();
  gather.wait();
  return whole;
}

Tensor AllGatherDispatcher::reduce_scatter_rows(const Tensor& parts, const OverlapFn& overlap_fn) const {
  Tensor own = Tensor::like(parts, {parts.dim(0) / parallel_.exchange->size(), parts.dim(1)});
  Work sum = parallel_.exchange->reduce_scatter(parts, own);
  overlap_fn();
  sum.wait();
  return own;
}

Tensor AllGatherDispatcher::dispatch(const Tensor& tokens, const OverlapFn& overlap_fn) {
  Tensor rows = Tensor::like(tokens, {tokens_.numel(), tokens.dim(1)});
  ops::gather_rows(all(tokens, overlap_fn), tokens_, rows);
  return rows;
}

Tensor AllGatherDispatcher::dispatch_backward(const Tensor& d_rows, const OverlapFn& overlap_fn) {
  Tensor parts = Tensor::like(d_rows, {slots_.dim(0), d_rows.dim(1)});
  ops::combine_rows(d_rows, slots_, nullptr, parts);
  return reduce_scatter_rows(parts, overlap_fn);
}

TokenDispatcher::Combined AllGatherDispatcher::combine(const Tensor& y, const Tensor& weights) {
  const Tensor all_weights = all(weights);
  Tensor parts = Tensor::like(y, {slots_.dim(0), y.dim(1)});
  ops::combine_rows(y, slots_, &all_weights, parts);
  return {.out = reduce_scatter_rows(parts), .kept = y};
}

TokenDispatcher::Gradients AllGatherDispatcher::combine_backward(const Tensor& d_out, const Tensor& kept,
                                                                 const Tensor& weights) {
  const Tensor all_weights = all(weights);
  Tensor d_rows = kept, d_weights = Tensor::like(all_weights);
  ops::combine_rows_backward(all(d_out), kept, slots_, all_weights, d_rows, d_weights);
  return {.rows = d_rows, .weights = reduce_scatter_rows(d_weights)};
}

}  // namespace mcpp
