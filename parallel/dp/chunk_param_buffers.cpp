#include "parallel/dp/chunk_param_buffers.h"

#include <map>

#include "parallel/dp/zero.h"

namespace mcpp {

ChunkParamBuffers::ChunkParamBuffers(std::span<const UnitParam> params, DType dtype, Device& device,
                                     const GroupsOf& groups, const DataParallelOptions& options) {
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

void ChunkParamBuffers::acquire(int unit, Use use) const {
  for (const auto& buffer : buffers_) buffer->acquire(unit, use);
}

void ChunkParamBuffers::release(int unit, Use use, bool last) const {
  for (const auto& buffer : buffers_) buffer->release(unit, use, last);
}

void ChunkParamBuffers::clear_grads() const {
  for (const auto& buffer : buffers_) buffer->clear_grads();
}

void ChunkParamBuffers::publish() const {
  for (const auto& buffer : buffers_) buffer->publish();
}

void ChunkParamBuffers::set_exact_reduction(bool is_exact) const {
  for (const auto& buffer : buffers_) buffer->set_exact_reduction(is_exact);
}

void ChunkParamBuffers::end_step(const Tensor& factor) const {
  for (const auto& buffer : buffers_) buffer->end_step(factor);
}

void ChunkParamBuffers::visit_weights(const ParamAndGradBuffer::PartVisitor& f) const {
  for (const auto& buffer : buffers_) buffer->visit_weights(f);
}

void ChunkParamBuffers::visit_stored_weights(const ParamAndGradBuffer::StoredPartVisitor& f) const {
  for (const auto& buffer : buffers_) buffer->visit_stored_weights(f);
}

void ChunkParamBuffers::visit_grads(const ParamAndGradBuffer::PartVisitor& f) const {
  for (const auto& buffer : buffers_) buffer->visit_grads(f);
}

std::vector<ParamAndGradBuffer*> ChunkParamBuffers::buffers() const {
  std::vector<ParamAndGradBuffer*> list;
  for (const auto& buffer : buffers_) list.push_back(buffer.get());
  return list;
}

}  // namespace mcpp
