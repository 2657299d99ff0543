#include "nn/microbatch_context.h"

#include <set>

#include "base/check.h"

namespace mcpp {

Tensor SavedTensors::take(const void* owner) {
  MCPP_CHECK(!entries_.empty(), "backward takes more tensors than forward saved");
  MCPP_CHECK(entries_.back().owner == owner, "backward does not run in the reverse order of forward");
  prefetch();
  if (!offloaded_.empty() && offloaded_.back().end == entries_.size()) reload();
  Entry entry = std::move(entries_.back());
  entries_.pop_back();
  if (!entry.recomputed) return entry.tensor;
  RecomputedTensor& recomputed = *entry.recomputed;
  if (!recomputed.value.defined()) recomputed.value = recomputed.compute(std::exchange(recomputed.inputs, {}));
  return recomputed.value;
}

i64 SavedTensors::bytes() const {
  i64 bytes = 0;
  std::set<const void*> counted;
  for (const Entry& entry : entries_) {
    if (entry.tensor.defined() && counted.insert(entry.tensor.raw()).second) bytes += entry.tensor.bytes();
  }
  return bytes;
}

template <class F>
void SavedTensors::for_each_tensor(std::size_t first, F&& f) {
  std::set<const RecomputedTensor*> seen;
  for (std::size_t i = first; i < entries_.size(); ++i) {
    Entry& entry = entries_[i];
    if (!entry.recomputed) {
      f(entry.tensor);
    } else if (seen.insert(entry.recomputed.get()).second) {
      for (Tensor& input : entry.recomputed->inputs) f(input);
    }
  }
}

void SavedTensors::offload(std::size_t first, ActivationStore& store) {
  if (first == entries_.size()) return;
  OffloadedBatch offloaded{.first = first, .end = entries_.size(), .locations = {}, .tensors = nullptr};
  std::map<std::pair<const void*, i64>, std::size_t>
      tensor_indices;  // a tensor saved by several owners is offloaded once
  std::vector<Tensor> tensors;
  for_each_tensor(first, [&](Tensor& t) {
    if (!t.defined()) return offloaded.locations.push_back({});
    const auto [index, is_new] = tensor_indices.try_emplace({t.raw(), t.bytes()}, tensors.size());
    offloaded.locations.push_back({index->second, t.shape()});
    if (is_new) tensors.push_back(t);
  });
  offloaded.tensors = store.put(std::move(tensors));
  for_each_tensor(first, [](Tensor& t) { t = Tensor(); });
  offloaded_.push_back(std::move(offloaded));
}

void SavedTensors::prefetch() const {
  if (!offloaded_.empty()) offloaded_.back().tensors->prefetch();
}

void SavedTensors::reload() {
  const OffloadedBatch offloaded = std::move(offloaded_.back());
  offloaded_.pop_back();
  const std::vector<Tensor> tensors = offloaded.tensors->take();
  auto location = offloaded.locations.begin();
  for_each_tensor(offloaded.first, [&](Tensor& t) {
    if (location->tensor) t = tensors[*location->tensor].view(location->shape);
    ++location;
  });
  prefetch();  // the next batch is prefetched while this one is used
}

MicrobatchContext MicrobatchContext::clone_for_recompute() const {
  MicrobatchContext clone;
  clone.training = training;
  clone.delay_wgrad_compute = delay_wgrad_compute;
  clone.yield = yield;
  clone.grad_scale = grad_scale;
  clone.decisions_ = decisions_;
  clone.samples = samples;
  clone.sample_indices = sample_indices;
  clone.loss_factor = loss_factor;
  clone.positions = positions;
  clone.partition = partition;
  clone.attention_starts = attention_starts;
  clone.position_starts = position_starts;
  clone.sequence_starts = sequence_starts;
  return clone;
}

void MicrobatchContext::save(const void* owner, const Tensor& t) {
  if (!saves_for_backward) return;
  for (const auto& [tensor, recomputed] : discarded_) {
    if (tensor.raw() == t.raw()) return saved_tensors.save(owner, recomputed);
  }
  saved_tensors.save(owner, t);
}

MicrobatchContext::Decisions MicrobatchContext::decide(const void* owner, const std::function<Decisions()>& make) {
  if (const auto kept = decisions_->find(owner); kept != decisions_->end()) {
    Decisions decisions = std::move(kept->second);
    decisions_->erase(kept);
    return decisions;
  }
  Decisions decisions = make();
  if (training && !saves_for_backward) (*decisions_)[owner] = decisions;
  return decisions;
}

MicrobatchContext::DiscardScope::DiscardScope(MicrobatchContext& context, const Tensor& t, std::vector<Tensor> inputs,
                                              RecomputedTensor::Compute compute)
    : context_(context) {
  context.discarded_.emplace_back(
      t, std::make_shared<RecomputedTensor>(RecomputedTensor{std::move(inputs), std::move(compute), Tensor()}));
}

MicrobatchContext::DiscardScope::~DiscardScope() {
  context_.discarded_.pop_back();
}

void MicrobatchContext::run_or_delay_wgrad(std::function<void()> weight_gradient) {
  if (!delay_wgrad_compute) return weight_gradient();
  delayed_wgrads_.push_back(std::move(weight_gradient));
}

void MicrobatchContext::run_delayed_wgrads() {
  for (const auto& f : std::exchange(delayed_wgrads_, {})) f();
}

void MicrobatchContext::abort() {
  is_aborted_ = true;
  saved_tensors = {};
  delayed_wgrads_.clear();
}

void MicrobatchContext::take_delayed_wgrads(MicrobatchContext& other) {
  for (auto& f : std::exchange(other.delayed_wgrads_, {})) delayed_wgrads_.push_back(std::move(f));
}

}  // namespace mcpp
