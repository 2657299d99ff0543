#include "parallel/ep/all_to_all_dispatcher.h"

#include "tensor/ops/ops.h"
#include "tensor/ops/routing_tables.h"
#include "tensor/transfer.h"

namespace mcpp {
namespace {

DispatchPlan plan_of(const ExpertChoice& choice, const ExpertParallel& parallel) {
  const HostValues<i32> counts(choice.gathered_choices);  // the host needs the message sizes
  const int rank = parallel.exchange ? parallel.exchange->rank() : 0;
  return plan_dispatch({counts.begin(), counts.end()}, choice.num_experts, rank, parallel.ep, parallel.ep_rank);
}

/// Returns indices [rows, copies]: copy c of row r is row c * rows + r.
std::vector<i32> places_of_copies(i64 rows, i64 copies) {
  std::vector<i32> places;
  for (i64 row = 0; row < rows; ++row) {
    for (i64 copy = 0; copy < copies; ++copy) places.push_back(static_cast<i32>(copy * rows + row));
  }
  return places;
}

}  // namespace

AllToAllDispatcher::AllToAllDispatcher(const ExpertChoice& choice, const ExpertParallel& parallel)
    : parallel_(parallel), plan_(plan_of(choice, parallel)) {
  Device& device = choice.experts.device();
  tokens_ = Tensor::empty({plan_.choices}, DType::I32, device);
  slots_ = Tensor::like(choice.experts);
  ops::sort_choices(choice.experts, {0, choice.num_experts}, tokens_, slots_);
  if (plan_.is_sorted()) return;
  by_expert_ = Tensor::empty({plan_.received_rows()}, DType::I32, device);
  by_rank_ = Tensor::like(by_expert_);
  ops::permutation_from_runs(integers(plan_.runs, device).view({-1, 3}), by_expert_, by_rank_);
  if (parallel_.tp > 1)
    copies_ = integers(places_of_copies(tokens_.numel(), parallel_.tp), {tokens_.numel(), parallel_.tp}, device);
}

std::vector<Part> AllToAllDispatcher::sent(i64 width, i64 copy_stride) const {
  std::vector<Part> parts;
  for (const Part& part : plan_.sent) {
    for (i64 copy = 0; copy < parallel_.tp; ++copy)
      parts.push_back({(part.first + copy * copy_stride) * width, part.count * width});
  }
  return parts;
}

std::vector<Part> AllToAllDispatcher::received(i64 width) const {
  std::vector<Part> parts;
  for (const Part& part : plan_.received) parts.push_back({part.first * width, part.count * width});
  return parts;
}

Tensor AllToAllDispatcher::to_experts(const Tensor& choices, const OverlapFn& overlap_fn) const {
  if (plan_.is_sorted()) {
    overlap_fn();
    return choices;
  }
  const i64 width = choices.dim(1);
  Tensor arrived = Tensor::like(choices, {by_expert_.numel(), width});
  Work exchange = parallel_.exchange->all_to_all_v(choices, sent(width, 0), arrived, received(width));
  overlap_fn();
  exchange.wait();
  Tensor rows = Tensor::like(arrived);
  ops::gather_rows(arrived, by_expert_, rows);
  return rows;
}

Tensor AllToAllDispatcher::from_experts(const Tensor& rows, const OverlapFn& overlap_fn) const {
  if (plan_.is_sorted()) {
    overlap_fn();
    return rows;
  }
  const i64 width = rows.dim(1), count = tokens_.numel(), copies = parallel_.tp;
  Tensor leaving = Tensor::like(rows);
  ops::gather_rows(rows, by_rank_, leaving);
  Tensor parts = Tensor::like(rows, {copies * count, width});
  Work exchange = parallel_.exchange->all_to_all_v(leaving, received(width), parts, sent(width, count));
  overlap_fn();
  exchange.wait();
  if (copies == 1) return parts;
  Tensor sums = Tensor::like(rows, {count, width});
  ops::combine_rows(parts, copies_, nullptr, sums);
  return sums;
}

Tensor AllToAllDispatcher::dispatch(const Tensor& tokens, const OverlapFn& overlap_fn) {
  Tensor choices = Tensor::like(tokens, {tokens_.numel(), tokens.dim(1)});
  ops::gather_rows(tokens, tokens_, choices);
  return to_experts(choices, overlap_fn);
}

Tensor AllToAllDispatcher::dispatch_backward(const Tensor& d_rows, const OverlapFn& overlap_fn) {
  Tensor d_tokens = Tensor::like(d_rows, {slots_.dim(0), d_rows.dim(1)});
  ops::combine_rows(from_experts(d_rows, overlap_fn), slots_, nullptr, d_tokens);
  return d_tokens;
}

TokenDispatcher::Combined AllToAllDispatcher::combine(const Tensor& y, const Tensor& weights) {
  const Tensor choices = from_experts(y, [] {});
  Tensor out = Tensor::like(y, {slots_.dim(0), y.dim(1)});
  ops::combine_rows(choices, slots_, &weights, out);
  return {.out = out, .kept = choices};
}

TokenDispatcher::Gradients AllToAllDispatcher::combine_backward(const Tensor& d_out, const Tensor& kept,
                                                                const Tensor& weights) {
  Tensor d_choices = kept, d_weights = Tensor::like(weights);
  ops::combine_rows_backward(d_out, kept, slots_, weights, d_choices, d_weights);
  return {.rows = to_experts(d_choices, [] {}), .weights = d_weights};
}

}  // namespace mcpp
