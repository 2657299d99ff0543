#include "parallel/dp/buckets/buffer.h"

#include <set>

#include "nn/offload/host_memory.h"

namespace mcpp {
namespace {

std::vector<ParamMeta> param_metas(std::span<const UnitParam> params) {
  std::vector<ParamMeta> result;
  std::set<const Param*> seen;
  for (const UnitParam& p : params) {
    MCPP_CHECK(seen.insert(p.param).second, p.param->name, " is listed twice");
    result.push_back({p.param->name, p.param->numel(), p.unit});
  }
  return result;
}

}  // namespace

ParamAndGradBuffer::ParamAndGradBuffer(std::span<const UnitParam> params, DType dtype, Device& device, int shards,
                                       i64 bucket_elements)
    : dtype_(dtype), device_(device), plan_(plan_buffer(param_metas(params), shards, bucket_elements)) {
  for (const UnitParam& p : params) params_.push_back(p.param);
}

void ParamAndGradBuffer::clear_grads() {
  for (Param* param : params_) param->clear_grad();
  begin_step();
}

template <class F>
void ParamAndGradBuffer::for_each_part(const ShardSegment& segment, F&& f) const {
  for (std::size_t i = 0; i < params_.size(); ++i) {
    const ParamPart part = part_inside(plan_, i, segment.begin, segment.begin + segment.count);
    if (part.count <= 0) continue;
    f(*params_[i], part.first, plan_.offsets[i] + part.first - segment.begin, part.count);
  }
}

void ParamAndGradBuffer::visit_parts(const ShardSegment& segment, const Tensor& values, const PartVisitor& f) const {
  for_each_part(segment, [&](Param& param, i64 first, i64 at, i64 count) { f(param, first, values.flat(at, count)); });
}

void ParamAndGradBuffer::visit_weights(const PartVisitor& f) const {
  for (const ShardSegment& segment : shard()) {
    if (!segment.offload_store) {
      visit_parts(segment, segment.params, f);
      continue;
    }
    Tensor stored = segment.offload_store->fetch(segment.offload_segment).front();
    Tensor on_device = Tensor::empty({segment.count}, dtype_, device_, MemoryClass::Workspace);
    copy_over(stored, on_device);
    visit_parts(segment, on_device, f);
    copy_over(on_device, stored);
    segment.offload_store->drop(segment.offload_segment);
  }
}

void ParamAndGradBuffer::visit_stored_weights(const StoredPartVisitor& f) const {
  for (const ShardSegment& segment : shard()) {
    for_each_part(segment, [&](Param& param, i64 first, i64 at, i64 count) {
      f(param, first, segment.stored_weights(at, count));
    });
  }
}

void ParamAndGradBuffer::visit_grads(const PartVisitor& f) const {
  for (const ShardSegment& segment : shard()) visit_parts(segment, segment.grads, f);
}

}  // namespace mcpp
