#include "nn/pass.h"

#include <set>

#include "base/check.h"

namespace mcpp {

Tensor Stash::take(const void* owner) {
  MCPP_CHECK(!entries_.empty(), "backward takes more than forward saved");
  MCPP_CHECK(entries_.back().owner == owner, "backward runs in another order than forward");
  expect();
  if (!away_.empty() && away_.back().end == entries_.size()) bring_back();
  Entry entry = std::move(entries_.back());
  entries_.pop_back();
  if (!entry.recomputed) return entry.kept;
  Recomputed& again = *entry.recomputed;
  if (!again.value.defined()) again.value = again.compute(std::exchange(again.inputs, {}));
  return again.value;
}

i64 Stash::bytes() const {
  i64 bytes = 0;
  std::set<const void*> counted;
  for (const Entry& entry : entries_) {
    if (entry.kept.defined() && counted.insert(entry.kept.raw()).second) bytes += entry.kept.bytes();
  }
  return bytes;
}

template <class F>
void Stash::for_each_kept(std::size_t first, F&& f) {
  std::set<const Recomputed*> seen;
  for (std::size_t i = first; i < entries_.size(); ++i) {
    Entry& entry = entries_[i];
    if (!entry.recomputed) {
      f(entry.kept);
    } else if (seen.insert(entry.recomputed.get()).second) {
      for (Tensor& input : entry.recomputed->inputs) f(input);
    }
  }
}

void Stash::put_away(std::size_t first, ActivationStore& store) {
  if (first == entries_.size()) return;
  Away away{.first = first, .end = entries_.size(), .places = {}, .tensors = nullptr};
  std::map<std::pair<const void*, i64>, std::size_t> found;  // tensors saved by several owners are offloaded once
  std::vector<Tensor> tensors;
  for_each_kept(first, [&](Tensor& t) {
    if (!t.defined()) return away.places.push_back({});
    const auto [place, is_new] = found.try_emplace({t.raw(), t.bytes()}, tensors.size());
    away.places.push_back({place->second, t.shape()});
    if (is_new) tensors.push_back(t);
  });
  away.tensors = store.put(std::move(tensors));
  for_each_kept(first, [](Tensor& t) { t = Tensor(); });
  away_.push_back(std::move(away));
}

void Stash::expect() const {
  if (!away_.empty()) away_.back().tensors->expect();
}

void Stash::bring_back() {
  const Away away = std::move(away_.back());
  away_.pop_back();
  const std::vector<Tensor> tensors = away.tensors->take();
  auto place = away.places.begin();
  for_each_kept(away.first, [&](Tensor& t) {
    if (place->tensor) t = tensors[*place->tensor].view(place->shape);
    ++place;
  });
  expect();  // prefetches the next ones, overlapped with the use of these
}

Pass Pass::again() const {
  Pass pass;
  pass.training = training;
  pass.defers_weights = defers_weights;
  pass.grad_scale = grad_scale;
  pass.decisions_ = decisions_;
  pass.samples = samples;
  pass.positions = positions;
  pass.cut = cut;
  pass.attention_starts = attention_starts;
  pass.position_starts = position_starts;
  return pass;
}

void Pass::save(const void* owner, const Tensor& t) {
  if (!keeps_stash) return;
  for (const auto& [tensor, recomputed] : discarded_) {
    if (tensor.raw() == t.raw()) return stash.save(owner, recomputed);
  }
  stash.save(owner, t);
}

Pass::Decisions Pass::decide(const void* owner, const std::function<Decisions()>& make) {
  if (const auto kept = decisions_->find(owner); kept != decisions_->end()) {
    Decisions decisions = std::move(kept->second);
    decisions_->erase(kept);
    return decisions;
  }
  Decisions decisions = make();
  if (training && !keeps_stash) (*decisions_)[owner] = decisions;
  return decisions;
}

Pass::DiscardScope::DiscardScope(Pass& pass, const Tensor& t, std::vector<Tensor> inputs, Recomputed::Compute compute)
    : pass_(pass) {
  pass.discarded_.emplace_back(
      t, std::make_shared<Recomputed>(Recomputed{std::move(inputs), std::move(compute), Tensor()}));
}

Pass::DiscardScope::~DiscardScope() {
  pass_.discarded_.pop_back();
}

void Pass::run_or_defer(std::function<void()> weight_gradient) {
  if (!defers_weights) return weight_gradient();
  deferred_.push_back(std::move(weight_gradient));
}

void Pass::run_deferred() {
  for (const auto& f : std::exchange(deferred_, {})) f();
}

void Pass::give_up() {
  is_given_up_ = true;
  stash = {};
  deferred_.clear();
}

void Pass::defer_from(Pass& other) {
  for (auto& f : std::exchange(other.deferred_, {})) deferred_.push_back(std::move(f));
}

}  // namespace mcpp
