// Copies of shards in host memory: what a save writes while training changes the originals.
#pragma once
#include <span>
#include <stop_token>
#include <vector>

#include "checkpoint/format/shard.h"

namespace mcpp {

/// Its memory stays for the next copies, which are usually as large.
class HostStaging final : public ShardSource {
 public:
  /// Takes these shards instead of those before, whose copies nobody may read any more. Those on another device are
  /// copied at once, after the ops before; those in host memory are for copy_rest(), and must not change before.
  /// OutOfMemory, with the bytes, when the host has no room.
  void begin(std::span<const NamedShard> shards);
  /// Copies what begin() left, in any thread, but in one at a time. Fails like it, or when it is told to stop.
  void copy_rest(const std::stop_token& stop = {});

  std::span<const ShardSpec> shards() const override { return specs_; }
  Tensor data(std::size_t index) override { return copies_[index]; }
  i64 bytes() const { return host_.memory().total.bytes; }

 private:
  void copy(std::size_t index);

  CpuDevice host_;
  std::vector<ShardSpec> specs_;
  std::vector<Tensor> originals_;  // of those that are still to be copied
  std::vector<Tensor> copies_;
};

/// The shards at hand, on any device; each is copied to the host when asked for, unless it is there.
class HostCopies final : public ShardSource {
 public:
  explicit HostCopies(std::span<const NamedShard> shards) : list_(shards) {}
  std::span<const ShardSpec> shards() const override { return list_.shards(); }
  Tensor data(std::size_t index) override;

 private:
  CpuDevice host_;
  ShardList list_;
};

}  // namespace mcpp
