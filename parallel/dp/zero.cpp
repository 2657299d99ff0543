#include "parallel/dp/zero.h"

#include <map>
#include <utility>

#include "nn/offload/state_store.h"
#include "parallel/dp/replicated_store.h"
#include "parallel/dp/sharded_store.h"
#include "tensor/dtype.h"

namespace mcpp {
namespace {

std::unique_ptr<OffloadedParams> make_offloaded_params(OffloadTier tier, const ParamOffload& offload, Device& device) {
  if (tier == OffloadTier::Device) return nullptr;
  auto copies = offload.make_copies(device);
  auto store = std::make_unique<StateStore>(device, StateStoreOptions{.memory_class = MemoryClass::Params,
                                                                      .tier = tier,
                                                                      .copies = copies.get(),
                                                                      .folder = offload.folder,
                                                                      .key = offload.key,
                                                                      .supports_snapshots = offload.supports_snapshots,
                                                                      .what = "the weights"});
  return std::make_unique<OffloadedParams>(std::move(store), std::move(copies), device);
}

std::unique_ptr<ParamStore> make_param_store(const StoreContext& context, DType dtype, const Layout& layout,
                                             const ParamOffload& offload) {
  MCPP_CHECK(layout.zero_stage == 3 || layout.params_tier == OffloadTier::Device,
             "replicated weights cannot be offloaded");
  const WeightCodec codec(context, dtype, layout.formats.weight_encoding());
  const bool overlaps = layout.overlap_param_gather;
  if (layout.zero_stage < 3) return std::make_unique<ReplicatedParams>(context, codec, dtype, overlaps);
  return std::make_unique<ShardedParams>(context, codec, dtype, overlaps,
                                         make_offloaded_params(layout.params_tier, offload, context.device));
}

std::unique_ptr<GradStore> make_grad_store(const StoreContext& context, DType dtype, const Layout& layout) {
  const bool overlaps = layout.overlap_grad_reduce;
  if (layout.zero_stage < 2)
    return std::make_unique<ReplicatedGrads>(context, dtype, overlaps, layout.formats.power_sgd_rank);
  return std::make_unique<ShardedGrads>(context, dtype, layout.formats.has_bf16_grads() ? DType::BF16 : dtype,
                                        overlaps);
}

}  // namespace

ZeroBuffer::ZeroBuffer(std::span<const UnitParam> params, DType dtype, Device& device, const DataParallelGroups& groups,
                       const Layout& layout, const ParamOffload& offload)
    : ParamAndGradBuffer(params, dtype, device, groups.shard.size(),
                         bucket_close_threshold(static_cast<int>(layout.zero_stage), layout.bucket_size,
                                                layout.formats.has_quantized_comm())),
      stage_(layout.zero_stage),
      groups_(groups),
      context_{plan(), this->params(), device, groups} {
  MCPP_CHECK(stage_ > 0 || groups.replicate.size() == 1,
             "ZeRO stage 0 shards nothing: its shard group must be all ranks");
  MCPP_CHECK(stage_ > 0 || !layout.formats.has_quantized_comm(), "ZeRO stage 0 does not support encoded messages");
  MCPP_CHECK(stage_ < 2 || layout.formats.power_sgd_rank == 0, "ZeRO stage ", stage_,
             " has no unsharded gradients to factorize");
  context_.grad_reduce_format = layout.formats.grad_reduce_format();
  if (stage_ > 0) {
    context_.part = groups.shard.rank();
    context_.parts = groups.shard.size();
  }
  for (const Bucket& bucket : plan().buckets) {
    const bool is_one_unit = plan().params[bucket.first_param].unit == plan().params[bucket.end_param - 1].unit;
    MCPP_CHECK(stage_ < 2 || is_one_unit, "unit ", bucket.first_unit, " or a neighbor has no elements");
  }
  params_ = make_param_store(context_, dtype, layout, offload);
  grads_ = make_grad_store(context_, accumulate_dtype(dtype), layout);
  clear_grads();
}

void ZeroBuffer::acquire(int unit, Use use) {
  const std::optional<std::size_t> bucket = plan().bucket_of(unit);
  if (!bucket) return;
  Uses& uses = in_use_[unit];
  const bool is_nested = in_use_.rbegin()->first > unit;
  if (!uses.is_active()) params_->fetch(*bucket, use, is_nested);
  if (++uses.of(use) == 1 && use == Use::Backward) grads_->acquire(*bucket);
}

void ZeroBuffer::release(int unit, Use use, bool is_last) {
  const std::optional<std::size_t> bucket = plan().bucket_of(unit);
  if (!bucket) return;
  const auto it = in_use_.find(unit);
  MCPP_CHECK(it != in_use_.end() && it->second.of(use) > 0, "unit ", unit, " is released, but was not acquired");
  Uses& uses = it->second;
  if (use == Use::Backward) uses.has_last_backward |= is_last;
  if (--uses.of(use) == 0 && use == Use::Backward) {
    grads_->release(*bucket, unit, std::exchange(uses.has_last_backward, false));
  }
  if (uses.is_active()) return;
  params_->drop(*bucket);
  in_use_.erase(it);
}

void ZeroBuffer::finish() {
  grads_->finish();
  params_->finish_gathers();  // a gather may still be reading what the update will write
}

void ZeroBuffer::publish() {
  MCPP_CHECK(in_use_.empty(), "new weights while unit ", in_use_.begin()->first, " is in use");
  params_->publish();
}

std::vector<ShardSegment> ZeroBuffer::shard() const {
  params_->finish_gathers();
  std::vector<ShardSegment> segments;
  for (std::size_t b = 0; b < plan().buckets.size(); ++b) {
    const Bucket& bucket = plan().buckets[b];
    const i64 begin = bucket.begin + context_.part * (bucket.size() / context_.parts);
    segments.push_back({.begin = begin,
                        .count = bucket.size() / context_.parts,
                        .params = params_->shard(b),
                        .grads = grads_->shard(b),
                        .offload_store = params_->offload_store(),
                        .offload_segment = b});
  }
  return segments;
}

std::unique_ptr<ParamAndGradBuffer> make_param_and_grad_buffer(std::span<const UnitParam> params, DType dtype,
                                                               Device& device, const DataParallelGroups& groups,
                                                               const Layout& layout, const ParamOffload& offload) {
  check_input(layout.zero_stage >= 0 && layout.zero_stage <= 3, "zero_stage = ", layout.zero_stage,
              " does not exist; it is 0, 1, 2 or 3");
  return std::make_unique<ZeroBuffer>(params, dtype, device, groups, layout, offload);
}

ChunkParamBuffers::ChunkParamBuffers(std::span<const UnitParam> params, DType dtype, Device& device,
                                     const GroupLookup& groups, const Layout& layout, const ParamOffload& offload) {
  std::map<GridKind, std::vector<UnitParam>> by_grid;
  if (params.empty()) by_grid[GridKind::Dense];  // a stage without layers also takes part in the schedule
  for (const UnitParam& p : params) {
    const Placement& placement = p.param->placement;
    for (const Axis axis : {Axis::Cp, Axis::Dp}) {
      MCPP_CHECK(placement[axis].spread == Spread::Partial && !placement[axis].holders, p.param->name, " is placed ",
                 name_of(placement[axis].spread), " along ", name_of(axis),
                 ", along which its buffer sums gradients: it must be Partial");
    }
    by_grid[placement.grid].push_back(p);
  }
  for (const auto& [grid, list] : by_grid)
    buffers_.push_back(make_param_and_grad_buffer(list, dtype, device, groups(grid), layout, offload));
}

void ChunkParamBuffers::acquire(int unit, Use use) const {
  for (const auto& buffer : buffers_) buffer->acquire(unit, use);
}

void ChunkParamBuffers::release(int unit, Use use, bool is_last) const {
  for (const auto& buffer : buffers_) buffer->release(unit, use, is_last);
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
