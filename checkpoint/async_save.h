// Saving beside the training: a thread writes, the training goes on, and ends the save when all ranks have written.
#pragma once
#include <atomic>
#include <thread>

#include "checkpoint/host_staging.h"
#include "checkpoint/writer.h"

namespace mcpp {

/// A save in flight. CheckFreq (Mohan et al., FAST 2021) calls its halves snapshot and persist: HostStaging::copy() is
/// the first, this the second.
class AsyncSave {
 public:
  /// Starts to write what `staging` holds. Called by all ranks of `world`; all arguments outlive this.
  AsyncSave(SaveTarget target, RunState state, HostStaging& staging, Communicator& world, const Log& log,
            const FileSystem& files);
  /// Without finish(): gives the save up, with no other rank's help, and leaves the folder as before.
  ~AsyncSave();

  /// Whether this rank's part is written, or failed to be: then finish() will not wait for it.
  bool is_written() const { return is_written_; }
  /// Waits for this rank's part, then CheckpointSave::finish().
  Path finish();

 private:
  /// The staged shards, until nobody wants them any more.
  class Source final : public ShardSource {
   public:
    explicit Source(HostStaging& staging) : staging_(staging) {}
    std::span<const ShardSpec> shards() const override { return staging_.shards(); }
    Tensor data(std::size_t index) override;
    void cancel() { cancelled_ = true; }

   private:
    HostStaging& staging_;
    std::atomic<bool> cancelled_ = false;
  };

  CheckpointSave save_;
  Source source_;
  std::atomic<bool> is_written_ = false;
  std::thread writer_;  // last: it uses all of the above
};

}  // namespace mcpp
