#include "parallel/dp/away_params.h"

#include "nn/offload/host_memory.h"

namespace mcpp {

void AwayParams::expect(const std::vector<std::size_t>& buckets) {
  if (is_beside() && !buckets.empty()) start(buckets.front());
  store_->expect(buckets);
}

void AwayParams::start(std::size_t bucket) {
  if (coming_ && coming_->bucket == bucket) return;
  finish_fetch();
  const Tensor there = store_->fetch(bucket).front();
  const Tensor part = Tensor::empty(there.shape(), there.dtype(), device_, MemoryClass::Params);
  coming_ = Coming{bucket, part, copies_->to_device(there, part)};
}

Tensor AwayParams::take(std::size_t bucket) {
  start(bucket);
  Tensor part = coming_->part;
  finish_fetch();
  return part;
}

void AwayParams::take_into(std::size_t bucket, Tensor& part) {
  copy_over(store_->fetch(bucket).front(), part);
  store_->drop_unchanged(bucket);
}

/// Waits here, so that the host is one unit ahead of the device and neither waits for the other.
void AwayParams::finish_fetch() {
  if (!coming_) return;
  coming_->copy.wait();
  store_->drop_unchanged(coming_->bucket);
  coming_.reset();
}

}  // namespace mcpp
