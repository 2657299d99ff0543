#include "parallel/dp/offloaded_params.h"

#include "nn/offload/host_memory.h"

namespace mcpp {

void OffloadedParams::prefetch(const std::vector<std::size_t>& buckets) {
  if (is_asynchronous() && !buckets.empty()) start(buckets.front());
  store_->prefetch(buckets);
}

void OffloadedParams::start(std::size_t bucket) {
  if (pending_copy_ && pending_copy_->bucket == bucket) return;
  finish_fetch();
  const Tensor stored = store_->fetch(bucket).front();
  const Tensor part = Tensor::empty(stored.shape(), stored.dtype(), device_, MemoryClass::Params);
  pending_copy_ = PendingCopy{bucket, part, copies_->to_device(stored, part)};
}

Tensor OffloadedParams::take(std::size_t bucket) {
  start(bucket);
  Tensor part = pending_copy_->part;
  finish_fetch();
  return part;
}

void OffloadedParams::copy_into(std::size_t bucket, Tensor& part) {
  copy_over(store_->fetch(bucket).front(), part);
  store_->release_clean(bucket);
}

/// Waits here, so that the host is one unit ahead of the device and neither waits for the other.
void OffloadedParams::finish_fetch() {
  if (!pending_copy_) return;
  pending_copy_->copy.wait();
  store_->release_clean(pending_copy_->bucket);
  pending_copy_.reset();
}

}  // namespace mcpp
