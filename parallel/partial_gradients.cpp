#include "parallel/partial_gradients.h"

#include <functional>
#include <utility>

#include "tensor/ops/ops.h"
#include "tensor/wide.h"

namespace mcpp {
namespace {

/// Calls f on the gradients in this rank's shards that are summed over `copies` ranks.
void visit_partial(std::span<ParamAndGradBuffer* const> buffers, int copies, const std::function<void(Tensor&)>& f) {
  for (const ParamAndGradBuffer* buffer : buffers) {
    buffer->visit_grads([&](const Param& param, i64, Tensor grads) {
      if (param.grad_is_partial && param.tp_copies == copies) f(grads);
    });
  }
}

}  // namespace

PartialGradients::PartialGradients(std::span<ParamAndGradBuffer* const> buffers, Communicator& tp)
    : buffers_(buffers.begin(), buffers.end()) {
  for (const ParamAndGradBuffer* buffer : buffers) {
    for (const Param* param : buffer->params()) {
      if (param->grad_is_partial && param->tp_copies > 1) groups_[param->tp_copies] = &tp;
    }
  }
  for (auto& [copies, group] : groups_) {
    if (copies == tp.size()) continue;
    MCPP_CHECK(tp.size() % copies == 0, copies, " copies in a group of ", tp.size());
    group = (parts_[copies] = tp.split(tp.rank() / copies, tp.rank())).get();
  }
}

void PartialGradients::reduce() {
  for (const auto& [copies, group] : groups_) reduce(copies, *group);
}

void PartialGradients::reduce(int copies, Communicator& group) {
  i64 count = 0;
  visit_partial(buffers_, copies, [&](const Tensor& grads) { count += grads.numel(); });
  if (count == 0) return;  // the same on all ranks of the group: they hold the same shards
  const ParamAndGradBuffer& first = *buffers_.front();
  Tensor all = Tensor::empty({count}, wide(first.dtype()), first.device(), MemoryClass::Workspace);
  i64 at = 0;
  const auto next = [&](const Tensor& grads) { return all.flat(std::exchange(at, at + grads.numel()), grads.numel()); };
  visit_partial(buffers_, copies, [&](const Tensor& grads) {
    Tensor place = next(grads);
    ops::copy(grads, place);
  });
  group.all_reduce(all, ReduceOp::Sum).wait();
  at = 0;
  visit_partial(buffers_, copies, [&](Tensor& grads) { ops::copy(next(grads), grads); });
}

}  // namespace mcpp
