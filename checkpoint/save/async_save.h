// Asynchronous saving: a thread copies, writes and commits a checkpoint while training continues.
#pragma once
#include <atomic>
#include <future>
#include <stop_token>

#include "checkpoint/save/host_staging.h"
#include "checkpoint/save/writer.h"

namespace mcpp {

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

  /// Path of the checkpoint being saved.
  Path path() const { return save_.path(); }
  /// Blocks until the copy is made, or has failed (then advance() throws on all ranks). Each rank must call it before
  /// it changes the host memory of shards that staging has begun.
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
  std::future<void> work_;  // of the thread; last because it uses all members above and its destructor waits
};

}  // namespace mcpp
