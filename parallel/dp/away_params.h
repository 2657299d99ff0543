// This rank's parts of the weights where they are kept away (ZeRO-Infinity, Rajbhandari et al. 2021), and their way to
// the device.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "nn/offload/state_store.h"
#include "tensor/host/side_copies.h"

namespace mcpp {

class AwayParams {
 public:
  /// `store` has a segment of one vector for each bucket, in memory of the host that is pinned for `copies`, which are
  /// those of `device`. The device outlives this.
  AwayParams(std::unique_ptr<StateStore> store, std::unique_ptr<SideCopies> copies, Device& device)
      : device_(device), store_(std::move(store)), copies_(std::move(copies)) {}

  StateStore& store() const { return *store_; }
  /// Parts come beside the computing, each into a tensor of its own, if they are expected; else it is quicker to have
  /// them copied where they belong.
  bool is_beside() const { return !copies_->are_immediate(); }
  /// These are wanted next, in this order. With is_beside() the first sets out for the device.
  void expect(const std::vector<std::size_t>& buckets);
  /// The part of a bucket on the device, for ops that are queued from here on. With is_beside() only.
  Tensor take(std::size_t bucket);
  /// The same in `part`.
  void take_into(std::size_t bucket, Tensor& part);
  /// Nothing is on its way afterwards: the store is free to be used otherwise.
  void finish_fetch();

 private:
  /// In use in the store until it has arrived.
  struct Coming {
    std::size_t bucket;
    Tensor part;
    SideCopy copy;
  };
  void start(std::size_t bucket);

  Device& device_;
  std::unique_ptr<StateStore> store_;
  std::unique_ptr<SideCopies> copies_;  // after the store, whose memory copies may use until these go
  std::optional<Coming> coming_;
};

}  // namespace mcpp
