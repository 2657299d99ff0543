// Saving beside the training: a thread copies, writes and commits, and the training goes on.
#pragma once
#include <atomic>
#include <future>
#include <stop_token>

#include "checkpoint/save/host_staging.h"
#include "checkpoint/save/writer.h"

namespace mcpp {

/// A save in flight, as in CheckFreq (Mohan et al., FAST 2021). Snapshot: while the next forward and backward read the
/// weights, a thread copies them; what changes them waits for wait_for_copy(). Persist: the thread writes the copy.
/// Commit: when all ranks have written, the leader's thread makes the checkpoint of that. The thread never
/// communicates: between these the ranks meet in advance().
class AsyncSave {
 public:
  /// Starts to copy and write what `staging` has begun. Called by all ranks of `world`; all arguments outlive this.
  AsyncSave(SaveTarget target, RunState state, HostStaging& staging, Communicator& world, KeptRef<Log> log,
            KeptRef<FileSystem> files);
  /// Before the end, with no other rank's help: gives up what is not written and leaves the folder as before; a commit
  /// that has begun goes on to its end.
  ~AsyncSave();

  /// Of the checkpoint that is to be.
  Path path() const { return save_.path(); }
  /// Returns when the copy is made, or failed: then advance() throws, on all ranks. For each rank by itself, before it
  /// changes what is in host memory of the shards that staging has begun.
  void wait_for_copy() const { is_copied_.wait(false); }
  /// Whether this rank's thread has nothing to do: then advance() does not wait for it.
  bool is_idle() const;
  /// Waits for what the thread does, and lets it do what comes next. Whether the save has ended and its checkpoint is
  /// there. Called by all ranks; when any of them failed, all throw its error.
  bool advance();

 private:
  /// The staged shards, until nobody wants them any more.
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
  void note_copied();

  CheckpointSave save_;
  std::stop_source stop_;
  Source source_;
  std::atomic<bool> is_copied_ = false;
  bool is_committing_ = false;
  std::future<void> work_;  // of the thread; last, because it uses all of the above, and its destructor waits
};

}  // namespace mcpp
