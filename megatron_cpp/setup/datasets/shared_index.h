// Sample indices that the ranks of a run read together.
#pragma once
#include <functional>

#include "comm/communicator.h"
#include "data/read/index/index_ranks.h"

namespace mcpp {

/// The ranks of a run. Who waits for a rank that builds meets it several times a second, and sleeps in between: so no
/// watchdog takes a long build for a hang, and a signal on any rank is heard of. Then the build is given up, and
/// Preempted thrown on all ranks.
class SharedIndexRanks final : public IndexRanks {
 public:
  /// `node`: the ranks of this one's machine. `signal` gives the one that asks this rank to stop, or 0. The groups
  /// outlive this.
  SharedIndexRanks(
      Communicator& world, Communicator& node, std::function<int()> signal = [] { return 0; })
      : world_(world), node_(node), signal_(std::move(signal)) {}

  bool run(Who who, const std::function<bool(const IndexBuild&)>& f) const override;

 private:
  bool is_one_of(Who who) const;

  Communicator& world_;
  Communicator& node_;
  std::function<int()> signal_;
};

}  // namespace mcpp
