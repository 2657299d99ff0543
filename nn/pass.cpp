#include "nn/pass.h"

#include <set>

#include "base/check.h"

namespace mcpp {

Tensor Stash::take(const void* owner) {
  MCPP_CHECK(!entries_.empty(), "backward takes more than forward saved");
  MCPP_CHECK(entries_.back().owner == owner, "backward runs in another order than forward");
  Entry entry = std::move(entries_.back());
  entries_.pop_back();
  if (!entry.recomputed) return entry.kept;
  if (!entry.recomputed->value.defined()) entry.recomputed->value = entry.recomputed->compute();
  return entry.recomputed->value;
}

i64 Stash::bytes() const {
  i64 bytes = 0;
  std::set<const void*> counted;
  for (const Entry& entry : entries_) {
    if (entry.kept.defined() && counted.insert(entry.kept.raw()).second) bytes += entry.kept.bytes();
  }
  return bytes;
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

Pass::DiscardScope::DiscardScope(Pass& pass, const Tensor& t, std::function<Tensor()> compute) : pass_(pass) {
  pass.discarded_.emplace_back(t, std::make_shared<Recomputed>(Recomputed{std::move(compute), {}}));
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
