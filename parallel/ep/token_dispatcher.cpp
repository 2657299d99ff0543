#include "parallel/ep/token_dispatcher.h"

#include <algorithm>
#include <numeric>

#include "base/integer_math.h"
#include "parallel/ep/hierarchical_dispatcher.h"
#include "tensor/ops/ops.h"
#include "tensor/ops/routing_tables.h"
#include "tensor/transfer.h"

namespace mcpp {
namespace {

/// Returns the permutation of received rows from [ranks][local experts] to [local experts][ranks] order.
std::vector<i32> order_by_expert(const std::vector<std::vector<i64>>& rows_of_ranks,
                                 const std::vector<Part>& received) {
  std::vector<std::vector<Part>> runs;
  for (const std::vector<i64>& rows : rows_of_ranks) runs.push_back(consecutive_parts(rows));
  std::vector<i32> order;
  i64 destination = 0;
  for (std::size_t e = 0; e < runs[0].size(); ++e) {
    for (std::size_t r = 0; r < runs.size(); ++r) {
      const Part& run = runs[r][e];
      for (const i64 value : {received[r].first + run.first, destination, run.count})
        order.push_back(static_cast<i32>(value));
      destination += run.count;
    }
  }
  return order;
}

}  // namespace

DispatchPlan plan_dispatch(std::span<const i32> counts, i64 num_experts, int rank, int parts, int part) {
  const std::size_t all = static_cast<std::size_t>(num_experts),
                    num_local_experts = all / static_cast<std::size_t>(parts);
  const std::size_t ranks = counts.size() / all, first = num_local_experts * static_cast<std::size_t>(part);
  MCPP_CHECK(counts.size() == ranks * all && num_local_experts * static_cast<std::size_t>(parts) == all &&
                 static_cast<std::size_t>(rank) < ranks,
             counts.size(), " counts are invalid for ", num_experts, " experts in ", parts, " parts, and rank ", rank);
  const auto sum = [&](std::size_t of_rank, std::size_t begin) {
    const std::span<const i32> experts = counts.subspan(of_rank * all + begin, num_local_experts);
    return std::accumulate(experts.begin(), experts.end(), i64{0});
  };
  DispatchPlan plan;
  std::vector<i64> sent, received;
  for (std::size_t p = 0; p < static_cast<std::size_t>(parts); ++p)
    sent.push_back(sum(static_cast<std::size_t>(rank), p * num_local_experts));
  plan.choices = std::accumulate(sent.begin(), sent.end(), i64{0});
  plan.sent = consecutive_parts(sent);
  std::vector<std::vector<i64>> rows_of_ranks;
  plan.rows.assign(num_local_experts, 0);
  for (std::size_t r = 0; r < ranks; ++r) {
    const std::span<const i32> local_counts = counts.subspan(r * all + first, num_local_experts);
    rows_of_ranks.emplace_back(local_counts.begin(), local_counts.end());
    for (std::size_t e = 0; e < num_local_experts; ++e) plan.rows[e] += local_counts[e];
    received.push_back(sum(r, first));
  }
  plan.received = consecutive_parts(received);
  plan.runs = order_by_expert(rows_of_ranks, plan.received);
  return plan;
}

DispatchPlan plan_padded_dispatch(const ops::PaddedRows& rows, i64 num_experts, i64 ranks, int parts) {
  MCPP_CHECK(num_experts % parts == 0 && ranks % parts == 0, "the experts or the ranks cannot be divided into ", parts);
  MCPP_CHECK(ranks > 1 || rows.per_rank == rows.per_expert, "a rank alone sends ", rows.per_rank,
             " rows to an expert, which has ", rows.per_expert);
  const i64 local_experts = num_experts / parts, part_rows = local_experts * rows.per_rank;
  const auto repeat = [](i64 times, i64 value) { return std::vector<i64>(static_cast<std::size_t>(times), value); };
  return {.choices = num_experts * rows.per_rank,
          .sent = consecutive_parts(repeat(parts, part_rows)),
          .received = consecutive_parts(repeat(ranks, part_rows)),
          .runs = {},
          .rows = repeat(local_experts, rows.per_expert)};
}

namespace {

/// Returns true if ranks need the experts of each token of the others, not only their numbers.
bool gathers_choices(const ExpertParallel& parallel) {
  return parallel.dispatcher != TokenDispatcherType::AllToAll && parallel.exchange_ranks() > 1;
}

bool is_meta(const Tensor& t) {
  return t.device().type() == DeviceType::Meta;
}

Tensor counts_of(const Tensor& experts, i64 num_experts) {
  Tensor counts = Tensor::empty({1, num_experts}, DType::I32, experts.device());
  ops::count_choices(experts, {0, num_experts}, counts);
  return counts;
}

}  // namespace

ExpertChoice exchange_choices(const Tensor& experts, i64 num_experts, const ExpertParallel& parallel) {
  const i64 ranks = parallel.exchange_ranks();
  const Tensor own = gathers_choices(parallel) ? experts : counts_of(experts, num_experts);
  if (ranks == 1) return {experts, own, num_experts};
  Tensor all = Tensor::like(own, {ranks * own.dim(0), own.dim(1)});
  parallel.exchange->all_gather(own, all).wait();
  return {experts, all, num_experts};
}

Tensor encode_if_defined(const Tensor& rows, const RowEncoding& encoding) {
  if (!encoding.is_defined()) return rows;
  Tensor codes = Tensor::empty({rows.dim(0), encoding.words(rows.dim(1))}, DType::I32, rows.device());
  ops::encode_rows(rows, encoding, codes);
  return codes;
}

std::unique_ptr<TokenDispatcher> make_token_dispatcher(const ExpertChoice& choice, const ExpertParallel& parallel,
                                                       const ops::PaddedRows& padded_rows) {
  const bool gathers = gathers_choices(parallel);
  if (gathers && parallel.dispatcher == TokenDispatcherType::AllGather)
    return std::make_unique<AllGatherDispatcher>(choice, parallel, padded_rows);
  if (!gathers && padded_rows.per_rank > 0) return std::make_unique<AllToAllDispatcher>(choice, parallel, padded_rows);
  std::unique_ptr<TokenDispatcher> dispatcher;
  if (gathers)
    dispatcher = std::make_unique<HierarchicalDispatcher>(choice, parallel);
  else
    dispatcher = std::make_unique<AllToAllDispatcher>(choice, parallel, ops::PaddedRows{});
  if (padded_rows.per_expert == 0) return dispatcher;
  return std::make_unique<PaddedDispatcher>(std::move(dispatcher), padded_rows.per_expert, choice.experts.device());
}

namespace {

/// Returns the number of choices of all ranks for each of this rank's experts.
std::vector<i64> local_rows(const ExpertChoice& choice, const ExpertParallel& parallel) {
  if (is_meta(choice.experts)) return assumed_rows(choice.sizes(), parallel);
  const ExpertRange experts = parallel.local_experts(choice.num_experts);
  Tensor counts = Tensor::empty({experts.count}, DType::I32, choice.experts.device());
  ops::count_choices(choice.gathered_choices, experts, counts);
  const HostValues<i32> values(counts);
  return {values.begin(), values.end()};
}

/// Returns where gradients of the rows of `outputs` are written: over them, or with padding in new memory, because the
/// gradient of padding is zero and its output may be a bias.
Tensor row_gradients(const Tensor& outputs, bool is_padded) {
  return is_padded ? Tensor::zeros(outputs.shape(), outputs.dtype(), outputs.device()) : outputs;
}

}  // namespace

AllGatherDispatcher::AllGatherDispatcher(const ExpertChoice& choice, const ExpertParallel& parallel,
                                         const ops::PaddedRows& padded_rows)
    : exchange_(*parallel.exchange) {
  const ExpertRange experts = parallel.local_experts(choice.num_experts);
  const i64 rows = padded_rows.per_expert;
  is_padded_ = rows > 0;
  rows_ = is_padded_ ? std::vector<i64>(static_cast<std::size_t>(experts.count), rows) : local_rows(choice, parallel);
  const i64 all = std::accumulate(rows_.begin(), rows_.end(), i64{0});
  row_sources_ = Tensor::empty({all}, DType::I32, choice.experts.device());
  row_slots_ = Tensor::like(choice.gathered_choices);
  if (is_padded_)
    ops::place_choices(choice.gathered_choices, experts, rows, row_sources_, row_slots_);
  else
    ops::sort_choices(choice.gathered_choices, experts, row_sources_, row_slots_);
}

Tensor AllGatherDispatcher::send(const Tensor& rows, const OverlapFn& overlap_fn) const {
  Tensor gathered = Tensor::like(rows, {rows.dim(0) * exchange_.size(), rows.dim(1)});
  Work gather = exchange_.all_gather(rows, gathered);
  overlap_fn();
  gather.wait();
  return gathered;
}

Tensor AllGatherDispatcher::return_sums(const Tensor& rows, const OverlapFn& overlap_fn) const {
  Tensor own = Tensor::like(rows, {rows.dim(0) / exchange_.size(), rows.dim(1)});
  Work sum = exchange_.reduce_scatter(rows, own);
  overlap_fn();
  sum.wait();
  return own;
}

Tensor OncePerRankDispatcher::dispatch(const Tensor& tokens, const OverlapFn& overlap_fn) {
  Tensor rows = Tensor::like(tokens, {row_sources_.numel(), tokens.dim(1)});
  ops::gather_rows(send(tokens, overlap_fn), row_sources_, rows);
  return rows;
}

Tensor OncePerRankDispatcher::dispatch_backward(const Tensor& d_rows, const OverlapFn& overlap_fn) {
  Tensor sums = Tensor::like(d_rows, {row_slots_.dim(0), d_rows.dim(1)});
  ops::combine_rows(d_rows, row_slots_, nullptr, sums);
  return return_sums(sums, overlap_fn);
}

TokenDispatcher::Combined OncePerRankDispatcher::combine(const Tensor& y, const Tensor& weights,
                                                         const OverlapFn& overlap_fn) {
  const Tensor received_weights = send(weights, do_nothing);
  Tensor sums = Tensor::like(y, {row_slots_.dim(0), y.dim(1)});
  ops::combine_rows(y, row_slots_, &received_weights, sums);
  return {.out = return_sums(sums, overlap_fn), .saved = y, .weights = received_weights};
}

TokenDispatcher::Gradients OncePerRankDispatcher::combine_backward(const Tensor& d_out, const Tensor& saved,
                                                                   const Tensor& weights, const RowEncoding& encoding,
                                                                   const OverlapFn& overlap_fn) {
  Tensor d_rows = row_gradients(saved, is_padded_), d_weights = Tensor::like(weights);
  ops::combine_rows_backward(send(d_out, overlap_fn), saved, row_slots_, weights, d_rows, d_weights);
  return {.rows = encode_if_defined(d_rows, encoding), .weights = return_sums(d_weights, do_nothing)};
}

namespace {

DispatchPlan make_plan(const ExpertChoice& choice, const ExpertParallel& parallel) {
  const int rank = parallel.exchange ? parallel.exchange->rank() : 0;
  if (is_meta(choice.experts))
    return plan_dispatch(assumed_counts(choice.sizes(), parallel), choice.num_experts, rank, parallel.ep,
                         parallel.ep_rank);
  const HostValues<i32> counts(choice.gathered_choices);  // the host needs the message sizes
  return plan_dispatch({counts.begin(), counts.end()}, choice.num_experts, rank, parallel.ep, parallel.ep_rank);
}

}  // namespace

AllToAllDispatcher::AllToAllDispatcher(const ExpertChoice& choice, const ExpertParallel& parallel,
                                       const ops::PaddedRows& padded_rows)
    : parallel_(parallel),
      plan_(padded_rows.per_expert > 0
                ? plan_padded_dispatch(padded_rows, choice.num_experts, parallel.exchange_ranks(), parallel.ep)
                : make_plan(choice, parallel)),
      is_padded_(padded_rows.per_expert > 0) {
  Device& device = choice.experts.device();
  tokens_ = Tensor::empty({plan_.choices}, DType::I32, device);
  slots_ = Tensor::like(choice.experts);
  if (is_padded_)
    make_padded_tables(choice, padded_rows);
  else
    make_tables(choice);
  if (plan_.is_sorted() || parallel_.tp == 1) return;
  copies_ = Tensor::empty({tokens_.numel(), parallel_.tp}, DType::I32, device);
  ops::fill_progression(copies_, {.first = 0, .row_step = 1, .column_step = tokens_.numel()});
}

void AllToAllDispatcher::make_tables(const ExpertChoice& choice) {
  ops::sort_choices(choice.experts, {0, choice.num_experts}, tokens_, slots_);
  if (plan_.is_sorted()) return;
  Device& device = choice.experts.device();
  by_expert_ = Tensor::empty({plan_.received_rows()}, DType::I32, device);
  by_rank_ = Tensor::like(by_expert_);
  ops::permutation_from_runs(integers(plan_.runs, device).view({-1, 3}), by_expert_, by_rank_);
}

void AllToAllDispatcher::make_padded_tables(const ExpertChoice& choice, const ops::PaddedRows& padded_rows) {
  ops::place_choices(choice.experts, {0, choice.num_experts}, padded_rows.per_rank, tokens_, slots_);
  if (plan_.is_sorted()) return;
  const ExpertRange experts = parallel_.local_experts(choice.num_experts);
  Device& device = choice.experts.device();
  by_expert_ = Tensor::empty({experts.count * padded_rows.per_expert}, DType::I32, device);
  by_rank_ = Tensor::empty({plan_.received_rows()}, DType::I32, device);
  ops::order_padded_rows(choice.gathered_choices, experts, padded_rows, by_expert_, by_rank_);
}

std::vector<Part> AllToAllDispatcher::sent(i64 width, i64 copy_stride) const {
  std::vector<Part> parts;
  for (const Part& part : plan_.sent) {
    for (i64 copy = 0; copy < parallel_.tp; ++copy)
      parts.push_back({(part.first + copy * copy_stride) * width, part.count * width});
  }
  return parts;
}

Tensor AllToAllDispatcher::send_to_experts(const Tensor& choices, const OverlapFn& overlap_fn) const {
  if (plan_.is_sorted()) {
    overlap_fn();
    return choices;
  }
  const i64 width = choices.dim(1);
  Tensor received_rows = Tensor::like(choices, {by_rank_.numel(), width});
  Work exchange = parallel_.exchange->all_to_all_v(choices, sent(width, 0), received_rows, received(width));
  overlap_fn();
  exchange.wait();
  Tensor rows = Tensor::like(received_rows, {by_expert_.numel(), width});
  ops::gather_rows(received_rows, by_expert_, rows);
  return rows;
}

Tensor AllToAllDispatcher::return_from_experts(const Tensor& rows, const OverlapFn& overlap_fn) const {
  if (plan_.is_sorted()) {
    overlap_fn();
    return rows;
  }
  const i64 width = rows.dim(1), count = tokens_.numel(), copies = parallel_.tp;
  Tensor sent_rows = Tensor::like(rows, {by_rank_.numel(), width});
  ops::gather_rows(rows, by_rank_, sent_rows);
  Tensor parts = Tensor::like(rows, {copies * count, width});
  Work exchange = parallel_.exchange->all_to_all_v(sent_rows, received(width), parts, sent(width, count));
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
  return send_to_experts(choices, overlap_fn);
}

Tensor AllToAllDispatcher::dispatch_backward(const Tensor& d_rows, const OverlapFn& overlap_fn) {
  Tensor d_tokens = Tensor::like(d_rows, {slots_.dim(0), d_rows.dim(1)});
  ops::combine_rows(return_from_experts(d_rows, overlap_fn), slots_, nullptr, d_tokens);
  return d_tokens;
}

TokenDispatcher::Combined AllToAllDispatcher::combine(const Tensor& y, const Tensor& weights,
                                                      const OverlapFn& overlap_fn) {
  const Tensor choices = return_from_experts(y, overlap_fn);
  Tensor out = Tensor::like(y, {slots_.dim(0), y.dim(1)});
  ops::combine_rows(choices, slots_, &weights, out);
  return {.out = out, .saved = choices, .weights = weights};
}

TokenDispatcher::Gradients AllToAllDispatcher::combine_backward(const Tensor& d_out, const Tensor& saved,
                                                                const Tensor& weights, const RowEncoding& encoding,
                                                                const OverlapFn& overlap_fn) {
  // Padding that was sent back is zero already.
  Tensor d_choices = row_gradients(saved, is_padded_ && plan_.is_sorted()), d_weights = Tensor::like(weights);
  ops::combine_rows_backward(d_out, saved, slots_, weights, d_choices, d_weights);
  return {.rows = send_to_experts(encode_if_defined(d_choices, encoding), overlap_fn), .weights = d_weights};
}

PaddedDispatcher::PaddedDispatcher(std::unique_ptr<TokenDispatcher> inner, i64 rows, Device& device)
    : inner_(std::move(inner)), rows_(inner_->rows().size(), rows) {
  std::vector<i32> sources, indices;
  for (const i64 count : inner_->rows()) {
    MCPP_CHECK(count <= rows, "an expert receives ", count, " rows, more than the padded number ", rows);
    for (i64 row = 0; row < rows; ++row) {
      const bool is_filled = row < count;
      if (is_filled) indices.push_back(static_cast<i32>(sources.size()));
      sources.push_back(is_filled ? static_cast<i32>(indices.size()) - 1 : -1);
    }
  }
  padded_indices_ = integers(indices, device);
  sources_ = integers(sources, device);
}

Tensor PaddedDispatcher::add_padding(const Tensor& rows) const {
  Tensor all = Tensor::like(rows, {sources_.dim(0), rows.dim(1)});
  ops::gather_rows(rows, sources_, all);
  return all;
}

Tensor PaddedDispatcher::remove_padding(const Tensor& rows) const {
  Tensor unpadded = Tensor::like(rows, {padded_indices_.numel(), rows.dim(1)});
  ops::gather_rows(rows, padded_indices_, unpadded);
  return unpadded;
}

Tensor PaddedDispatcher::dispatch(const Tensor& tokens, const OverlapFn& overlap_fn) {
  return add_padding(inner_->dispatch(tokens, overlap_fn));
}

TokenDispatcher::Combined PaddedDispatcher::combine(const Tensor& y, const Tensor& weights,
                                                    const OverlapFn& overlap_fn) {
  return inner_->combine(remove_padding(y), weights, overlap_fn);
}

TokenDispatcher::Gradients PaddedDispatcher::combine_backward(const Tensor& d_out, const Tensor& saved,
                                                              const Tensor& weights, const RowEncoding& encoding,
                                                              const OverlapFn& overlap_fn) {
  Gradients gradients = inner_->combine_backward(d_out, saved, weights, encoding, overlap_fn);
  gradients.rows = add_padding(gradients.rows);
  return gradients;
}

Tensor PaddedDispatcher::dispatch_backward(const Tensor& d_rows, const OverlapFn& overlap_fn) {
  return inner_->dispatch_backward(remove_padding(d_rows), overlap_fn);
}

i64 SequenceShard::rows_per_rank(i64 rows) const {
  return tp_ ? ceil_div(rows, tp_->size()) : rows;
}

i64 SequenceShard::first_row(i64 rows) const {
  return tp_ ? std::min(rows, rows_per_rank(rows) * tp_->rank()) : 0;
}

i64 SequenceShard::count(i64 rows) const {
  return std::min(rows - first_row(rows), rows_per_rank(rows));
}

Tensor SequenceShard::scatter(const Tensor& x) const {
  if (!tp_) return x;
  const i64 rows = x.dim(0), first = first_row(rows), own = count(rows);
  if (own == rows_per_rank(rows)) return x.slice(first, first + own);
  Tensor part = Tensor::zeros({rows_per_rank(rows), x.dim(1)}, x.dtype(), x.device());
  Tensor filled = part.slice(0, own);
  if (own > 0) ops::copy(x.slice(first, first + own), filled);
  return part;
}

Tensor SequenceShard::gather(const Tensor& part, i64 rows) const {
  if (!tp_) return part;
  Tensor all = Tensor::like(part, {part.dim(0) * tp_->size(), part.dim(1)});
  tp_->all_gather(part, all).wait();
  return all.slice(0, rows);
}

}  // namespace mcpp
