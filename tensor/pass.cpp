#include "tensor/pass.h"

#include "base/check.h"

namespace mcpp {

Tensor Stash::take(const void* owner) {
  MCPP_CHECK(!entries_.empty(), "backward takes more than forward saved");
  MCPP_CHECK(entries_.back().first == owner, "backward runs in another order than forward");
  Tensor t = std::move(entries_.back().second);
  entries_.pop_back();
  return t;
}

void Pass::weights(std::function<void()> f) {
  if (!defers_weights) return f();
  deferred_.push_back(std::move(f));
}

void Pass::run_deferred() {
  for (const auto& f : std::exchange(deferred_, {})) f();
}

}  // namespace mcpp
