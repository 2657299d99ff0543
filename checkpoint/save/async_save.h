// Asynchronous saving: a thread copies, writes and commits a checkpoint while training continues.
#pragma once
#include <atomic>
#include <future>
#include <map>
#include <span>
#include <stop_token>
#include <thread>
#include <vector>

#include "checkpoint/format/shard.h"
#include "checkpoint/save/writer.h"
#include "tensor/host/pinned_buffer_pool.h"

namespace mcpp {

// Host copies of shards, which a save writes while training changes the originals.

/// Staging buffers in host memory. They are reused by later saves, which usually have the same sizes.
class HostStaging final : public ShardSource {
 public:
  /// `copies`: copy engine for the device of shards that are not in host memory. If null, begin() copies these shards
  /// itself.
  explicit HostStaging(std::unique_ptr<AsyncCopyEngine> copies = nullptr) : copy_engine_(std::move(copies)) {}

  /// Allocates buffers for shards like these in a background thread, once, because page faults on first use would slow
  /// down the first save. Ignores the shards' data. If allocation fails, begin() or copy_rest() tries again.
  void prepare(std::span<const NamedShard> shards);
  /// Replaces the previous shards, whose copies must no longer be in use. Starts copying shards that are not in host
  /// memory, ordered after earlier ops. Shards in host memory are copied by copy_rest(), which waits for all copies:
  /// until then no shard may change. Offloaded shards are not copied; a snapshot of their store is held until end().
  /// Throws OutOfMemory, with the number of bytes, if the host has too little memory.
  void begin(std::span<const NamedShard> shards);
  /// Copies the remaining shards. May run in any thread, but only one at a time. Throws like begin(), or if stopped.
  void copy_rest(const std::stop_token& stop = {});

  std::span<const ShardSpec> shards() const override { return specs_; }
  Tensor data(std::size_t index) override;
  /// Releases the snapshots. Call after the last use of the shards.
  void end() { snapshots_.clear(); }
  i64 bytes() const { return host_.memory().total.bytes; }

 private:
  /// Buffer size of a shard.
  struct Size {
    DType dtype;
    i64 numel;
    bool uses_copy_engine;  // true if copy_engine_ copies it
  };
  void copy(std::size_t index);
  void start_copy(std::size_t index);
  PinnedTensor allocate(const Size& size);
  const Tensor& ensure_buffer(const Tensor& from, std::size_t index);
  void allocate_buffers(std::span<const Size> sizes, const std::stop_token& stop);
  void finish_copies();

  bool uses_copy_engine(const Tensor& from) const { return copy_engine_ && copy_engine_->copies_asynchronously(from); }

  CpuDevice host_;
  std::vector<ShardSpec> specs_;
  std::vector<Tensor> originals_;  // not copied yet
  std::vector<PinnedTensor> copies_;
  std::unique_ptr<AsyncCopyEngine> copy_engine_;  // declared after the memory that it copies to
  std::vector<AsyncCopy> in_flight_;
  std::map<std::size_t, StoredArray> snapshots_;
  std::jthread preparing_;  // last member: ends before the members it fills are destroyed
};

/// Source of shards on any device or in a storage; copies each to host memory on request, unless it is there already.
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

/// A save in flight, as in CheckFreq (Mohan et al., FAST 2021). Snapshot: a thread copies the weights while the next
/// forward and backward read them; code that changes them must call wait_for_copy() first. Persist: the thread writes
/// the copy. Commit: after all ranks have written, the leader's thread publishes the checkpoint. The thread never
/// communicates: ranks synchronize between these phases in advance().
class AsyncSave {
 public:
  /// Starts to copy and write the shards that `staging` has begun. Collective over `world`.
  AsyncSave(SaveTarget target, RunState state, HostStaging& staging, Communicator& world, StoredRef<Log> log,
            StoredRef<FileSystem> files);
  /// Aborts locally, without communication: discards data not yet written and leaves the folder unchanged; a commit in
  /// progress is completed.
  ~AsyncSave();

  /// Returns the path of the checkpoint being saved.
  Path path() const { return save_.path(); }
  /// Blocks until the copy is complete or has failed (then advance() throws on all ranks). Each rank must call it
  /// before it changes the host memory of shards that staging has begun.
  void wait_for_copy() const { is_copied_.wait(false); }
  /// Returns true if this rank's thread is idle, so advance() will not block on it.
  bool is_idle() const;
  /// Waits for the thread and starts its next phase. Returns true when the save has finished and its checkpoint exists.
  /// Collective; if any rank failed, all throw its error.
  bool advance();

 private:
  /// The staged shards, released after their last use.
  class Source final : public ShardSource {
   public:
    Source(HostStaging& staging, std::stop_token stop) : staging_(staging), stop_(std::move(stop)) {}
    void copy() { staging_.copy_rest(stop_); }
    std::span<const ShardSpec> shards() const override { return staging_.shards(); }
    Tensor data(std::size_t index) override;

   private:
    HostStaging& staging_;
    std::stop_token stop_;
  };

  void copy_and_write();
  void notify_copied();

  CheckpointSave save_;
  std::stop_source stop_;
  Source source_;
  std::atomic<bool> is_copied_ = false;
  bool is_committing_ = false;
  std::future<void> work_;  // result of the thread; last member: uses all of the above, and its destructor waits
};

}  // namespace mcpp
