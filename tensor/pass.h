// One microbatch on its way through the model: what backward will need, and what weight gradients wait to be done.
#pragma once
#include <functional>
#include <utility>
#include <vector>

#include "tensor/tensor.h"

namespace mcpp {

class KvCache;

/// Tensors that forward leaves for backward, last in first out. Each is taken by the owner that saved it, in reverse
/// order; both are checked, so that a wrong pairing is found at once.
class Stash {
 public:
  void save(const void* owner, Tensor t) { entries_.emplace_back(owner, std::move(t)); }
  Tensor take(const void* owner);
  bool empty() const { return entries_.empty(); }
  std::size_t size() const { return entries_.size(); }

 private:
  std::vector<std::pair<const void*, Tensor>> entries_;
};

struct Pass {
  bool training = true;      ///< dropout is on
  bool keeps_stash = true;   ///< backward will come; off in evaluation and inside recomputed layers' first forward
  std::vector<i64> samples;  ///< [b] global sample numbers of the microbatch: they key dropout
  i64 first_position = 0;    ///< position of the first token (generation with a cache)
  KvCache* kv_cache = nullptr;
  Stash stash;

  /// Saves for backward, if there will be one.
  void save(const void* owner, Tensor t) {
    if (keeps_stash) stash.save(owner, std::move(t));
  }
  Tensor take(const void* owner) { return stash.take(owner); }

  /// Runs a weight-gradient computation now, or keeps it for run_deferred() when the schedule splits backward in two.
  void weights(std::function<void()> f);
  void run_deferred();
  bool defers_weights = false;

 private:
  std::vector<std::function<void()>> deferred_;
};

}  // namespace mcpp
