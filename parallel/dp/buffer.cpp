#include "parallel/dp/buffer.h"

#include <set>

#include "parallel/dp/zero.h"

namespace mcpp {
namespace {

std::vector<ParamMeta> metas(std::span<const UnitParam> params) {
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
    : dtype_(dtype), device_(device), plan_(plan_buffer(metas(params), shards, bucket_elements)) {
  for (const UnitParam& p : params) params_.push_back(p.param);
}

void ParamAndGradBuffer::clear_grads() {
  for (Param* param : params_) param->clear_grad();
  begin_step();
}

void ParamAndGradBuffer::visit_parts(Tensor ShardSegment::*tensor, const PartVisitor& f) const {
  for (const ShardSegment& segment : shard()) {
    for (std::size_t i = 0; i < params_.size(); ++i) {
      const ParamPart part = part_inside(plan_, i, segment.begin, segment.begin + segment.params.numel());
      if (part.count <= 0) continue;
      f(*params_[i], part.first, (segment.*tensor).flat(plan_.offsets[i] + part.first - segment.begin, part.count));
    }
  }
}

void ParamAndGradBuffer::visit_weights(const PartVisitor& f) const {
  visit_parts(&ShardSegment::params, f);
}

void ParamAndGradBuffer::visit_grads(const PartVisitor& f) const {
  visit_parts(&ShardSegment::grads, f);
}

std::unique_ptr<ParamAndGradBuffer> make_param_and_grad_buffer(std::span<const UnitParam> params, DType dtype,
                                                               Device& device, const DataParallelGroups& groups,
                                                               const DataParallelOptions& options) {
  check_input(options.zero_stage >= 0 && options.zero_stage <= 3, "zero_stage = ", options.zero_stage,
              " does not exist; it is 0, 1, 2 or 3");
  return std::make_unique<ZeroBuffer>(params, dtype, device, groups, options);
}

}  // namespace mcpp
