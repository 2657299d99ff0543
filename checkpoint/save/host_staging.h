// Copies of shards in host memory: what a save writes while training changes the originals.
#pragma once
#include <map>
#include <span>
#include <stop_token>
#include <thread>
#include <vector>

#include "checkpoint/format/shard.h"
#include "tensor/host/host_rooms.h"

namespace mcpp {

/// Its memory stays for the next copies, which are usually as large.
class HostStaging final : public ShardSource {
 public:
  /// `copies`: of the device of the shards that are not in host memory. Without them begin() makes those copies itself.
  explicit HostStaging(std::unique_ptr<SideCopies> copies = nullptr) : copier_(std::move(copies)) {}

  /// Makes room for copies of shards like these in a thread beside the caller, once: memory that a system hands out
  /// page by page as it is first written would hold up the first save. The shards themselves are not looked at. Room
  /// that cannot be had is asked for again by what needs it.
  void prepare(std::span<const NamedShard> shards);
  /// Takes these shards instead of those before, whose copies nobody may read any more. The copies of those on another
  /// device begin, after the ops before; those in host memory are for copy_rest(), which waits for all: until then no
  /// shard may change. Of stored ones it keeps a snapshot. OutOfMemory, with the bytes, when the host has no room.
  void begin(std::span<const NamedShard> shards);
  /// Copies what begin() left, in any thread, but in one at a time. Fails like it, or when it is told to stop.
  void copy_rest(const std::stop_token& stop = {});

  std::span<const ShardSpec> shards() const override { return specs_; }
  Tensor data(std::size_t index) override;
  /// Nobody wants these shards any more: gives up the snapshots.
  void end() { snapshots_.clear(); }
  i64 bytes() const { return host_.memory().total.bytes; }

 private:
  /// Room that a shard needs.
  struct Size {
    DType dtype;
    i64 numel;
    bool is_beside;  // its copy is
  };
  void copy(std::size_t index);
  void start_copy(std::size_t index);
  PinnedTensor room(const Size& size);
  const Tensor& make_room_for(const Tensor& from, std::size_t index);
  void make_room(std::span<const Size> sizes, const std::stop_token& stop);
  void finish_copies();

  bool is_beside(const Tensor& from) const { return copier_ && copier_->are_for(from); }

  CpuDevice host_;
  std::vector<ShardSpec> specs_;
  std::vector<Tensor> originals_;  // of those that are still to be copied
  std::vector<PinnedTensor> copies_;
  std::unique_ptr<SideCopies> copier_;  // after the memory that it copies to
  std::vector<SideCopy> under_way_;
  std::map<std::size_t, std::shared_ptr<const StoredNumbers>> snapshots_;
  std::jthread preparing_;  // last, so that it ends before what it fills
};

/// The shards at hand, on any device or stored; each is copied to the host when asked for, unless it is there.
class HostCopies final : public ShardSource {
 public:
  explicit HostCopies(std::span<const NamedShard> shards)
      : shards_(shards.begin(), shards.end()), specs_(specs_of(shards)) {}
  std::span<const ShardSpec> shards() const override { return specs_; }
  Tensor data(std::size_t index) override;

 private:
  CpuDevice host_;
  std::vector<NamedShard> shards_;
  std::vector<ShardSpec> specs_;
};

}  // namespace mcpp
