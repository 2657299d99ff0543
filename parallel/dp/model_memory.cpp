#include "parallel/dp/model_memory.h"

#include <map>

#include "parallel/dp/zero.h"

namespace mcpp {

ModelMemory::ModelMemory(std::span<const UnitParam> params, DType dtype, Device& device, const GroupsOf& groups,
                         const DataParallelOptions& options) {
  std::map<GridKind, std::vector<UnitParam>> by_grid;
  if (params.empty()) by_grid[GridKind::Dense];  // a stage without layers also takes part in the schedule
  for (const UnitParam& p : params) {
    const Placement& placement = p.param->placement;
    for (const Axis axis : {Axis::Cp, Axis::Dp}) {
      MCPP_CHECK(placement[axis].spread == Spread::Partial && !placement[axis].holders, p.param->name, " is placed ",
                 name_of(placement[axis].spread), " along ", name_of(axis),
                 ", over all of which its buffer sums gradients: it must be Partial there");
    }
    by_grid[placement.grid].push_back(p);
  }
  for (const auto& [grid, list] : by_grid)
    buffers_.push_back(make_param_and_grad_buffer(list, dtype, device, groups(grid), options));
}

void ModelMemory::acquire(int unit, Use use) const {
  for (const auto& buffer : buffers_) buffer->acquire(unit, use);
}

void ModelMemory::release(int unit, Use use, bool last) const {
  for (const auto& buffer : buffers_) buffer->release(unit, use, last);
}

void ModelMemory::clear_grads() const {
  for (const auto& buffer : buffers_) buffer->clear_grads();
}

void ModelMemory::publish() const {
  for (const auto& buffer : buffers_) buffer->publish();
}

void ModelMemory::sum_in_full(bool in_full) const {
  for (const auto& buffer : buffers_) buffer->sum_in_full(in_full);
}

void ModelMemory::end_step(const Tensor& factor) const {
  for (const auto& buffer : buffers_) buffer->end_step(factor);
}

void ModelMemory::visit_weights(const ParamAndGradBuffer::PartVisitor& f) const {
  for (const auto& buffer : buffers_) buffer->visit_weights(f);
}

void ModelMemory::visit_stored_weights(const ParamAndGradBuffer::StoredPartVisitor& f) const {
  for (const auto& buffer : buffers_) buffer->visit_stored_weights(f);
}

void ModelMemory::visit_grads(const ParamAndGradBuffer::PartVisitor& f) const {
  for (const auto& buffer : buffers_) buffer->visit_grads(f);
}

std::vector<ParamAndGradBuffer*> ModelMemory::buffers() const {
  std::vector<ParamAndGradBuffer*> list;
  for (const auto& buffer : buffers_) list.push_back(buffer.get());
  return list;
}

}  // namespace mcpp
