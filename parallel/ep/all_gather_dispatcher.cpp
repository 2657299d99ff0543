#include "parallel/ep/all_gather_dispatcher.h"

#include "tensor/integers.h"
#include "tensor/ops/ops.h"

namespace mcpp {

AllGatherDispatcher::AllGatherDispatcher(const ExpertChoice& choice, const ExpertParallel& parallel)
    : parallel_(parallel) {
  Device& device = choice.experts.device();
  const i64 topk = choice.experts.dim(1);
  std::vector<i32> experts = read_values<i32>(choice.told);
  const i64 own = choice.num_experts / parallel_.ep, first = own * parallel_.ep_rank;
  for (i32& expert : experts) {  // other ranks' experts are none here
    const bool is_here = expert >= first && expert < first + own;
    expert = is_here ? static_cast<i32>(expert - first) : -1;
  }
  plan_ = plan_dispatch(experts, topk, count_choices(experts, own), own, 1, 0);
  tokens_ = integers(plan_.tokens, device);
  slots_ = integers(plan_.slots, device).view({-1, topk});
}

Tensor AllGatherDispatcher::all(const Tensor& own, const Meanwhile& meanwhile) const {
  Tensor whole = Tensor::like(own, {own.dim(0) * parallel_.exchange->size(), own.dim(1)});
  Work gather = parallel_.exchange->all_gather(own, whole);
  meanwhile();
  gather.wait();
  return whole;
}

Tensor AllGatherDispatcher::own_sum(const Tensor& parts, const Meanwhile& meanwhile) const {
  Tensor own = Tensor::like(parts, {parts.dim(0) / parallel_.exchange->size(), parts.dim(1)});
  Work sum = parallel_.exchange->reduce_scatter(parts, own);
  meanwhile();
  sum.wait();
  return own;
}

Tensor AllGatherDispatcher::dispatch(const Tensor& tokens, const Meanwhile& meanwhile) {
  Tensor rows = Tensor::like(tokens, {tokens_.numel(), tokens.dim(1)});
  ops::gather_rows(all(tokens, meanwhile), tokens_, rows);
  return rows;
}

Tensor AllGatherDispatcher::dispatch_backward(const Tensor& d_rows, const Meanwhile& meanwhile) {
  Tensor parts = Tensor::like(d_rows, {slots_.dim(0), d_rows.dim(1)});
  ops::combine_rows(d_rows, slots_, nullptr, parts);
  return own_sum(parts, meanwhile);
}

TokenDispatcher::Combined AllGatherDispatcher::combine(const Tensor& y, const Tensor& weights) {
  const Tensor all_weights = all(weights);
  Tensor parts = Tensor::like(y, {slots_.dim(0), y.dim(1)});
  ops::combine_rows(y, slots_, &all_weights, parts);
  return {.out = own_sum(parts), .kept = y};
}

TokenDispatcher::Gradients AllGatherDispatcher::combine_backward(const Tensor& d_out, const Tensor& kept,
                                                                 const Tensor& weights) {
  const Tensor all_weights = all(weights);
  Tensor d_rows = kept, d_weights = Tensor::like(all_weights);
  ops::combine_rows_backward(all(d_out), kept, slots_, all_weights, d_rows, d_weights);
  return {.rows = d_rows, .weights = own_sum(d_weights)};
}

}  // namespace mcpp
