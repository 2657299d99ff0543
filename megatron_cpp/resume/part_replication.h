// Replication of a local checkpoint to other nodes while training continues.
#pragma once
#include <future>
#include <memory>
#include <vector>

#include "base/log.h"
#include "base/stored_ref.h"
#include "checkpoint/directory/retention.h"
#include "checkpoint/save/writer.h"
#include "comm/communicator.h"
#include "megatron_cpp/resume/part_transfer.h"
#include "megatron_cpp/resume/replica_peers.h"

namespace mcpp {

/// Destination of the copies that this rank keeps.
struct ReplicaTarget {
  Path folder;  ///< folder of this rank's node in the local tier
  ReplicaPeers peers = {};
  Retention retention = {};
  SaveObserver observer = {};
};

/// Replication of one local checkpoint in three phases, between which ranks synchronize in advance():
///  - Prepare: a thread reads this rank's part into host memory, and allocates memory for the copies that it receives.
///  - Transfer: ranks send their parts to the ranks that keep copies.
///  - Publish: a thread writes the received copies, verifies their checksums and makes them visible. A copy with
///    damage is dropped with a warning; the previous one remains.
class PartReplication {
 public:
  /// Starts to replicate `part`, the complete part of this rank, as `target.folder`/replica_<rank>/<name of part> on
  /// its holders. Collective over `group`, a group of all ranks that nothing else uses.
  PartReplication(const Path& part, ReplicaTarget target, Communicator& group, StoredRef<Log> log);
  /// Aborts locally: removes copies that are not visible yet.
  ~PartReplication() = default;

  /// Returns true if this rank's thread is idle, so advance() will not block on it. Transfers are awaited by advance().
  bool is_idle() const;
  /// Completes the phase in progress and starts the next one. Returns true when all copies are complete. Collective; if
  /// any rank failed, for example because there is no space, all throw its error.
  bool advance();

 private:
  enum class Phase : u8 { Prepare, Transfer, Publish };
  /// Copy that this rank receives.
  struct Incoming {
    std::unique_ptr<PartReceive> receive;
    int source;  ///< rank whose part it is
  };

  void prepare();
  void publish();

  Path part_;
  ReplicaTarget target_;
  Communicator& group_;
  const Log& log_;
  Phase phase_ = Phase::Prepare;
  std::shared_ptr<PartFiles> files_;  // files of part_; null once sent
  std::vector<std::unique_ptr<PartSend>> sends_;
  std::vector<Incoming> incoming_;
  std::future<void> work_;  // result of the thread; last member: uses all of the above, and its destructor waits
};

}  // namespace mcpp
