// Collective construction of the sample indices of a run.
#pragma once
#include <functional>

#include "comm/communicator.h"
#include "data/dataset/index/index_cache.h"

namespace mcpp {

/// Ranks of a run. Ranks that wait for a build exchange a message with the builder several times a second and sleep in
/// between, so that a long build does not trigger the watchdog and a signal on any rank is noticed. On a signal the
/// build is canceled and Preempted is thrown on all ranks.
class SharedIndexRanks final : public IndexRanks {
 public:
  /// `node` is the group of ranks on this machine. `signal` returns the signal that asks this rank to stop, or 0.
  SharedIndexRanks(
      Communicator& world, Communicator& node, std::function<int()> signal = [] { return 0; })
      : world_(world), node_(node), signal_(std::move(signal)) {}

  bool run(RankScope who, const std::function<bool(const IndexBuildOptions&)>& f) const override;

 private:
  bool runs_on_this_rank(RankScope who) const;

  Communicator& world_;
  Communicator& node_;
  std::function<int()> signal_;
};

}  // namespace mcpp
