#include "optimizer/staged_update.h"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "nn/offload/host_memory.h"
#include "tensor/dtype.h"
#include "tensor/ops/ops.h"

namespace mcpp {
namespace {

constexpr i64 kTile = i64{1} << 17;  // encoded elements updated together: fit in the L2 cache with weights and gradient

bool is_same(const Tensor& a, const Tensor& b) {
  return a.raw() == b.raw() && a.numel() == b.numel() && a.dtype() == b.dtype();
}

/// Part of a run that is decoded and updated together.
struct PartRange {
  std::size_t number;  // of the segment
  const UpdateSegment& segment;
  const UpdateRun& run;
  i64 begin, count;  // range in the tensors of the shard

  i64 state_offset() const { return run.offset + begin - run.begin; }
};

std::vector<PartRange> split_into_parts(std::span<const UpdateSegment> segments,
                                        const std::vector<std::size_t>& order) {
  std::vector<PartRange> parts;
  for (const std::size_t s : order) {
    const bool is_plain = std::ranges::count(segments[s].forms, StorageForm::Plain) == std::ssize(segments[s].forms);
    for (const UpdateRun& run : segments[s].runs) {
      const i64 tile = is_plain ? run.count : kTile, end = run.begin + run.count;
      for (i64 begin = run.begin; begin < end; begin += tile)
        parts.push_back({s, segments[s], run, begin, std::min(tile, end - begin)});
    }
  }
  return parts;
}

/// Prefetches the offloaded weights of these segments, in this order.
void prefetch_weights(std::span<const UpdateSegment> segments, const std::vector<std::size_t>& order) {
  std::map<StateStore*, std::vector<std::size_t>> by_store;
  for (const std::size_t s : order) {
    const ShardSegment& shard = segments[s].shard;
    if (!shard.offload_store) continue;
    std::vector<std::size_t>& list = by_store[shard.offload_store];
    if (list.empty() || list.back() != shard.offload_segment) list.push_back(shard.offload_segment);
  }
  for (const auto& [store, list] : by_store) store->prefetch(list);
}

/// Copies of the tensors of parts on the device of their states, during one pass over the parts.
class Staging {
 public:
  Staging(AsyncCopyEngine& copies, PinnedBufferPool& pinned_buffers)
      : copy_engine_(copies), pinned_buffers_(pinned_buffers) {}

  /// Returns true if prefetching has any effect.
  bool is_asynchronous() const { return !copy_engine_.is_synchronous(); }
  /// Starts copying these tensors of the next part.
  void prefetch(const std::vector<Tensor>& tensors) {
    prefetched_.clear();
    for (const Tensor& t : tensors) {
      if (copy_engine_.copies_asynchronously(t)) prefetched_.push_back(start(t));
    }
  }
  /// Forgets the copies of the last part, except those being copied back.
  void begin_part() { staged_buffers_.clear(); }
  /// Returns a copy of a tensor of the part on `device`, or the tensor itself if it is there.
  Tensor stage(const Tensor& original, Device& device);
  /// Starts copying a staged tensor back to its original.
  void copy_back(const Tensor& staged, const Tensor& original);
  /// Waits for all copies back.
  void wait_for_copies_back();

 private:
  /// Tensor in flight and its host buffer.
  struct PendingCopy {
    Tensor original;
    std::shared_ptr<const Tensor> buffer;
    AsyncCopy copy;
  };
  /// Maximum number of copies back in flight before buffers are reused: weights and model of two parts.
  static constexpr std::size_t kMaxCopiesBack = 4;

  PendingCopy start(const Tensor& original) {
    PendingCopy t{.original = original, .buffer = pinned_buffers_.take(original.shape(), original.dtype()), .copy = {}};
    t.copy = copy_engine_.to_host(original, *t.buffer);
    return t;
  }

  AsyncCopyEngine& copy_engine_;
  PinnedBufferPool& pinned_buffers_;
  std::vector<PendingCopy> prefetched_, staged_buffers_;
  std::deque<PendingCopy> copies_back_;
  std::vector<AsyncCopy> to_host_;  // copies back to the host
};

Tensor Staging::stage(const Tensor& original, Device& device) {
  if (&original.device() == &device) return original;
  if (!copy_engine_.copies_asynchronously(original)) {
    const Tensor staged = Tensor::empty(original.shape(), original.dtype(), device, MemoryClass::Workspace);
    if (!copy_engine_.copies_asynchronously(staged)) return copy_to(device, original);
    copy_engine_.to_device(original, staged).make_stream_wait();
    return staged;
  }
  const auto it = std::ranges::find_if(prefetched_,
                                       [&](const PendingCopy& t) { return t.buffer && is_same(t.original, original); });
  PendingCopy& t =
      staged_buffers_.emplace_back(it == prefetched_.end() ? start(original) : std::exchange(*it, PendingCopy()));
  t.copy.wait();
  return *t.buffer;
}

void Staging::copy_back(const Tensor& staged, const Tensor& original) {
  if (&staged.device() == &original.device()) return;
  if (copy_engine_.copies_asynchronously(staged)) {
    to_host_.push_back(copy_engine_.to_host(staged, original));
    return;
  }
  const auto buffer =
      std::ranges::find_if(staged_buffers_, [&](const PendingCopy& t) { return is_same(t.original, original); });
  if (buffer == staged_buffers_.end()) {
    Tensor to = original;
    return copy_over(staged, to);
  }
  buffer->copy = copy_engine_.to_device(staged, original);
  copies_back_.push_back(std::move(*buffer));
  staged_buffers_.erase(buffer);
  if (copies_back_.size() <= kMaxCopiesBack) return;
  copies_back_.front().copy.wait();  // then its buffer may be reused
  copies_back_.pop_front();
}

void Staging::wait_for_copies_back() {
  for (AsyncCopy& copy : to_host_) copy.wait();
  for (PendingCopy& t : copies_back_) t.copy.wait();
  to_host_.clear();
  copies_back_.clear();
}

/// Access to the weights of shards that may be offloaded, of one at a time.
class WeightLease {
 public:
  /// Weights are written back in a pass that modifies them, after all copies back.
  WeightLease(PassKind kind, Staging& staging) : kind_(kind), staging_(staging) {}

  /// Returns the weights of the shard; valid until the next call for a different one.
  Tensor acquire(const ShardSegment& shard) {
    if (!shard.offload_store) return shard.params;
    if (leased_ && leased_->offload_store == shard.offload_store && leased_->offload_segment == shard.offload_segment)
      return weights_;
    release();
    weights_ = shard.offload_store->fetch(shard.offload_segment).front();
    leased_ = &shard;
    return weights_;
  }
  /// Releases the weights. Call after the last use.
  void release() {
    const ShardSegment* shard = std::exchange(leased_, nullptr);
    if (!shard) return;
    staging_.wait_for_copies_back();
    kind_ == PassKind::Update ? shard->offload_store->drop(shard->offload_segment)
                              : shard->offload_store->release_clean(shard->offload_segment);
  }

 private:
  PassKind kind_;
  Staging& staging_;
  const ShardSegment* leased_ = nullptr;
  Tensor weights_;
};

}  // namespace

std::vector<VectorSpec> UpdateSegment::vectors(DType wide) const {
  std::vector<VectorSpec> all;
  for (const StorageForm form : forms) {
    for (const VectorSpec& vector : stored_vectors(form, wide, count())) all.push_back(vector);
  }
  return all;
}

std::vector<StoredArray> UpdateSegment::states(std::span<const StoredArray> vectors, DType wide) const {
  std::vector<StoredArray> states;
  for (const StorageForm form : forms) {
    const std::size_t own = stored_vectors(form, wide, count()).size();
    states.emplace_back(form, wide, count(),
                        std::vector(vectors.begin(), vectors.begin() + static_cast<std::ptrdiff_t>(own)));
    vectors = vectors.subspan(own);
  }
  return states;
}

Tensor UpdateSegment::gradient(i64 begin, i64 count, DType wide) const {
  const Tensor grads = shard.grads.flat(begin, count);
  if (grads.dtype() == wide) return grads;
  Tensor widened = Tensor::empty({count}, wide, grads.device(), MemoryClass::Workspace);
  ops::copy(grads, widened);
  return widened;
}

UpdatePart make_update_part(const Tensor& model, std::vector<Tensor> states, const Tensor& grads, KeptWeights kept) {
  UpdatePart part{.weights = model, .states = std::move(states), .grads = grads, .model = {}};
  if (kept.has_ema) {
    part.ema = part.states.back();
    part.states.pop_back();
  }
  if (kept.has_master) {
    part.model = std::exchange(part.weights, part.states.front());
    part.states.erase(part.states.begin());
  }
  return part;
}

StagedUpdate::StagedUpdate(Device& device, DType dtype, KeptWeights kept, std::unique_ptr<AsyncCopyEngine> copies)
    : dtype_(dtype),
      kept_(kept),
      pinned_buffers_(*copies, MemoryClass::OptimizerState, host_threads(device)),
      copy_engine_(std::move(copies)) {}

void StagedUpdate::for_each_part(StateStore& states, std::span<const UpdateSegment> segments,
                                 const std::vector<std::size_t>& order, PassKind kind, const UpdateFunction& f) {
  states.prefetch(order);
  prefetch_weights(segments, order);
  const DType wide = accumulate_dtype(dtype_);
  Staging staging(*copy_engine_, pinned_buffers_);
  WeightLease lease(kind, staging);
  const std::vector<PartRange> parts = split_into_parts(segments, order);
  std::vector<StoredArray> arrays;  // states of the segment
  Device* device = nullptr;         // where they are
  Tensor next;                      // prefetched gradient of the next part
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto& [number, segment, run, begin, count] = parts[i];
    const PartRange* following = i + 1 < parts.size() ? &parts[i + 1] : nullptr;
    if (i == 0 || parts[i - 1].number != number) {
      std::vector<StoredArray> vectors;
      for (const Tensor& vector : states.fetch(number)) vectors.emplace_back(vector);
      device = &vectors.front().tensor().device();
      arrays = segment.states(vectors, wide);
    }
    const Tensor grads = next.defined() ? std::exchange(next, Tensor()) : segment.gradient(begin, count, wide);
    const Tensor model = lease.acquire(segment.shard).flat(begin, count);
    staging.begin_part();
    const Tensor local_model = staging.stage(model, *device), local_grads = staging.stage(grads, *device);
    if (following && staging.is_asynchronous()) {
      next = following->segment.gradient(following->begin, following->count, wide);
      if (!states.is_resident(following->number)) {
        const Tensor& params = following->segment.shard.params;
        staging.prefetch({next, params.defined() ? params.flat(following->begin, following->count) : Tensor()});
      }
    }
    std::vector<StoredArray> stored;
    std::vector<Tensor> decoded;
    for (std::size_t s = 0; s < arrays.size(); ++s) {
      stored.push_back(arrays[s].part(parts[i].state_offset(), count));
      const bool is_unused = kind == PassKind::Prepare &&
                             (segment.forms[s] == StorageForm::Remainder || segment.forms[s] == StorageForm::Model);
      decoded.push_back(is_unused ? Tensor() : stored[s].decode(local_model));
    }
    UpdatePart part = make_update_part(local_model, decoded, local_grads, kept_);
    part.buffer = segment.buffer, part.begin = segment.shard.begin + begin;
    f(*segment.rule, part, run.group);
    kind == PassKind::Update ? staging.copy_back(local_model, model) : staging.copy_back(local_grads, grads);
    for (std::size_t s = 0; s < stored.size(); ++s) {
      if (decoded[s].defined()) stored[s].encode(decoded[s]);
    }
    if (!following || following->number != number) states.drop(number);
  }
  lease.release();
}

Tensor copy_to(Device& device, const Tensor& values) {
  if (!values.defined() || &values.device() == &device) return values;
  Tensor copy = Tensor::empty(values.shape(), values.dtype(), device, MemoryClass::Workspace);
  copy_over(values, copy);
  return copy;
}

}  // namespace mcpp
