#include "megatron_cpp/step/recorded_passes.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "tensor/dtype.h"
#include "tensor/ops/ops.h"
#include "tensor/processor.h"
#include "tensor/transfer.h"

namespace mcpp {
namespace {

/// Returns an uninitialized tensor like `t`; undefined if `t` is.
Tensor allocate_like(const Tensor& t) {
  return t.defined() ? Tensor::like(t) : Tensor();
}
/// Returns null for an undefined tensor.
const void* address_of(const Tensor& t) {
  return t.defined() ? t.raw() : nullptr;
}
void copy_if_defined(const Tensor& from, Tensor& to) {
  if (from.defined()) ops::copy(from, to);
}

}  // namespace

bool RecordedPasses::begin_step(bool records_logits) {
  is_first_ = true;
  records_logits_ = records_logits;
  const Profiler* profiler = model_.context().profiler;
  is_eager_ = model_.is_observed() || (profiler && profiler->is_tracing());
  return is_warm();
}

Tensor RecordedPasses::run(const MicroBatch& batch, double grad_scale, const Pass& pass) {
  model_.wait_for_weights();
  const Key key{.is_first = std::exchange(is_first_, false),
                .records_logits = records_logits_,
                .has_attention_starts = batch.attention_starts.defined(),
                .has_position_starts = batch.position_starts.defined(),
                .shape = batch.tokens.shape()};
  auto found = recordings_.find(key);
  if (found == recordings_.end()) found = recordings_.emplace(key, make_recording(batch)).first;
  Recording& recording = found->second;
  write_inputs(batch, grad_scale, recording);
  MCPP_CHECK(arena_.live_bytes() == 0, "tensors of an earlier pass are still in the arena of recordings");
  if (is_eager_ || !recording.is_sized) {
    use_arena([&] { ops::copy(pass(recording.inputs), recording.per_token); });
    recording.is_sized |= !is_eager_;
    return recording.per_token;
  }
  if (!recording.graph) record(pass, recording);
  for (const Written& written : recording.written) {
    const Param& param = *written.param;
    MCPP_CHECK(address_of(param.value) == written.weight && address_of(param.main_grad) == written.gradient, param.name,
               ": the weight or the gradient has moved since a pass was recorded");
    written.param->mark_grad_written();
  }
  const ProfileRange range(device(), model_.context().profiler, "graph-launch", Detail::Microbatch);
  recording.graph->launch();
  return recording.per_token;
}

i64 RecordedPasses::count() const {
  return std::ranges::count_if(recordings_, [](const auto& entry) { return entry.second.graph != nullptr; });
}

RecordedPasses::Recording RecordedPasses::make_recording(const MicroBatch& batch) const {
  const auto samples = static_cast<i64>(batch.samples.size());
  Recording recording{.inputs = {.batch = batch, .sample_indices = {}, .loss_factor = {}},
                      .scalars = Tensor::empty({1 + samples}, DType::I64, device())};
  recording.inputs.loss_factor = recording.scalars.flat(0, 1).reinterpret(DType::F64);
  recording.inputs.sample_indices = recording.scalars.flat(1, samples);
  recording.per_token = Tensor::empty({batch.tokens.numel()}, accumulate_dtype(model_.context().dtype), device(),
                                      MemoryClass::Activations);
  MicroBatch& inputs = recording.inputs.batch;
  for (Tensor* t : {&inputs.tokens, &inputs.targets, &inputs.attention_starts, &inputs.position_starts})
    *t = allocate_like(*t);
  for (FutureTokens& future : inputs.future)
    future.tokens = allocate_like(future.tokens), future.targets = allocate_like(future.targets);
  return recording;
}

void RecordedPasses::write_inputs(const MicroBatch& batch, double grad_scale, Recording& recording) const {
  MicroBatch& inputs = recording.inputs.batch;
  copy_if_defined(batch.tokens, inputs.tokens);
  copy_if_defined(batch.targets, inputs.targets);
  copy_if_defined(batch.attention_starts, inputs.attention_starts);
  copy_if_defined(batch.position_starts, inputs.position_starts);
  for (std::size_t i = 0; i < batch.future.size(); ++i) {
    copy_if_defined(batch.future[i].tokens, inputs.future[i].tokens);
    copy_if_defined(batch.future[i].targets, inputs.future[i].targets);
  }
  std::vector<i64> scalars{std::bit_cast<i64>(grad_scale)};
  scalars.insert(scalars.end(), batch.samples.begin(), batch.samples.end());
  write_values(scalars, recording.scalars);
}

void RecordedPasses::use_arena(const std::function<void()>& f) {
  if (!is_warm()) return f();
  const MemoryArena::Scope scope(arena_, MemoryArena::Growth::Allowed);
  f();
}

/// Records the pass in the arena, which has the necessary blocks because a pass of this kind ran in it before. A
/// recording takes no further blocks, because a graph cannot wait for memory.
void RecordedPasses::record(const Pass& pass, Recording& recording) {
  {
    const MemoryArena::Scope scope(arena_, MemoryArena::Growth::Refused);
    recording.graph = record_graph(device(), [&] { ops::copy(pass(recording.inputs), recording.per_token); });
  }
  MCPP_CHECK(!arena_.has_foreign_release(), "a recorded pass releases memory that others may use");
  model_.visit_gradients([&](Param& param) {
    if (param.has_grad()) recording.written.push_back({&param, address_of(param.value), address_of(param.main_grad)});
  });
}

}  // namespace mcpp
