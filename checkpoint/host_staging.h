// Copies of shards in host memory: what a save writes while training changes the originals.
#pragma once
#include <span>
#include <vector>

#include "checkpoint/shard.h"

namespace mcpp {

/// Its memory stays for the next copies, which are usually as large.
class HostStaging final : public ShardSource {
 public:
  /// Copies the shards, which may be on any device. Nobody may read the copies before meanwhile. OutOfMemory, with the
  /// bytes, when the host has no room for them.
  void copy(std::span<const NamedShard> shards);

  std::span<const ShardSpec> shards() const override { return specs_; }
  Tensor data(std::size_t index) override { return copies_[index]; }
  i64 bytes() const { return host_.memory().total.bytes; }

 private:
  CpuDevice host_;
  std::vector<ShardSpec> specs_;
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
