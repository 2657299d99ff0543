#include "parallel/partial_gradients.h"

#include <functional>
#include <utility>

#include "comm/connect_collectives.h"
#include "parallel/dp/store.h"
#include "tensor/dtype.h"
#include "tensor/ops/ops.h"

namespace mcpp {
namespace {

bool is_summed_over_stages(const Param& param) {
  return param.placement.pp.spread == Spread::Partial;
}

/// Calls f on the gradients in this rank's shards that are summed over `copies` ranks of a tensor-parallel group.
void visit_partial(std::span<ParamAndGradBuffer* const> buffers, int copies, int tp,
                   const std::function<void(Tensor&)>& f) {
  for (const ParamAndGradBuffer* buffer : buffers) {
    if (buffer->grid() != GridKind::Dense) continue;
    buffer->visit_grads([&](const Param& param, i64, Tensor grads) {
      const AxisPlacement& along = param.placement.tp;
      if (along.spread == Spread::Partial && along.copies(tp) == copies) f(grads);
    });
  }
}

/// Returns true if the bucket of the parameter has no other one. All ranks that hold the parameter then shard it
/// identically.
bool has_own_bucket(const ParamAndGradBuffer& buffer, const Param& param) {
  for (const Bucket& bucket : buffer.plan().buckets) {
    if (bucket.end_param - bucket.first_param == 1 && buffer.params()[bucket.first_param] == &param) return true;
  }
  return false;
}

}  // namespace

PartialGradients::PartialGradients(std::span<ParamAndGradBuffer* const> buffers, const ReplicaGroups& groups)
    : buffers_(buffers.begin(), buffers.end()), tp_size_(groups.tp.size()), embedding_(groups.embedding) {
  for (const ParamAndGradBuffer* buffer : buffers) {
    for (const Param* param : buffer->params()) add_groups(*buffer, *param, groups.tp);
  }
  for (auto& [copies, group] : tp_groups_) {
    if (copies == groups.tp.size()) continue;
    group = (neighbor_groups_[copies] = groups.tp.split(groups.tp.rank() / copies, groups.tp.rank())).get();
    connect_collectives(*group, buffers.front()->device(), /*connects_second_lane=*/false);
  }
}

void PartialGradients::add_groups(const ParamAndGradBuffer& buffer, const Param& param, Communicator& tp) {
  const Placement& placement = param.placement;
  MCPP_CHECK(placement.ep.spread != Spread::Partial, param.name,
             " is placed Partial along ep, along which gradients are not summed");
  MCPP_CHECK(placement.grid == GridKind::Dense || placement.tp.spread != Spread::Partial, param.name,
             " is placed Partial along the experts' tp, along which gradients are not summed");
  if (const int copies = placement.tp.copies(tp.size()); placement.tp.spread == Spread::Partial && copies > 1) {
    MCPP_CHECK(tp.size() % copies == 0, param.name, " is held by ", copies, " of ", tp.size(), " ranks");
    const Holders neighbors{.first = tp.rank() / copies * copies, .count = copies};
    MCPP_CHECK(placement.tp.holders.value_or(neighbors) == neighbors, param.name,
               " is placed on tp ranks that are not neighbors of rank ", tp.rank());
    tp_groups_[copies] = &tp;
  }
  if (!is_summed_over_stages(param)) return;
  const int holders = placement.pp.holders ? placement.pp.holders->count : 0,
            members = embedding_ ? embedding_->size() : 0;
  MCPP_CHECK(holders == members, param.name, " is placed Partial along pp on ", holders,
             " ranks of the pipeline, but gradients are summed over ", members);
  MCPP_CHECK(!buffer.reduces_every_microbatch() || has_own_bucket(buffer, param), param.name,
             " is held by several pipeline stages, but its unit has other parameters");
}

void PartialGradients::finish() {
  sum_full_over_stages();
  for (ParamAndGradBuffer* buffer : buffers_) buffer->finish();
  sum_shards_over_stages();
  for (const auto& [copies, group] : tp_groups_) sum_over_tp(copies, *group);
}

void PartialGradients::sum_full_over_stages() {
  for (const ParamAndGradBuffer* buffer : buffers_) {
    if (buffer->reduces_every_microbatch()) continue;
    for (Param* param : buffer->params()) {
      if (!is_summed_over_stages(*param)) continue;
      zero_missing_grad(*param);
      embedding_->all_reduce(param->main_grad, ReduceOp::Sum).wait();
    }
  }
}

void PartialGradients::sum_shards_over_stages() {
  for (const ParamAndGradBuffer* buffer : buffers_) {
    if (!buffer->reduces_every_microbatch()) continue;
    buffer->visit_grads([&](const Param& param, i64, Tensor grads) {
      if (is_summed_over_stages(param)) embedding_->all_reduce(grads, ReduceOp::Sum).wait();
    });
  }
}

void PartialGradients::sum_over_tp(int copies, Communicator& group) {
  i64 count = 0;
  visit_partial(buffers_, copies, tp_size_, [&](const Tensor& grads) { count += grads.numel(); });
  if (count == 0) return;  // identical on all ranks of the group, which hold the same shards
  const ParamAndGradBuffer& first = *buffers_.front();
  Tensor message = Tensor::empty({count}, accumulate_dtype(first.dtype()), first.device(), MemoryClass::Workspace);
  i64 offset = 0;
  const auto next = [&](const Tensor& grads) {
    return message.flat(std::exchange(offset, offset + grads.numel()), grads.numel());
  };
  visit_partial(buffers_, copies, tp_size_, [&](const Tensor& grads) {
    Tensor part = next(grads);
    ops::copy(grads, part);
  });
  group.all_reduce(message, ReduceOp::Sum).wait();
  offset = 0;
  visit_partial(buffers_, copies, tp_size_, [&](Tensor& grads) { ops::copy(next(grads), grads); });
}

}  // namespace mcpp
