// Ranks that read the same samples, as seen by the index builder.
#pragma once
#include <functional>
#include <stop_token>

#include "base/check.h"

namespace mcpp {

/// Options for building an index.
struct IndexBuildOptions {
  int copies = 1;             ///< number of ranks on this machine that build their own copy at the same time
  std::stop_token stop = {};  ///< requests cancellation

  /// Throws Preempted if building `what` was canceled. Call it often during a long build.
  void throw_if_canceled(const char* what) const {
    if (stop.stop_requested()) fail(ExitCode::Preempted, "a signal stopped the run while it was building ", what);
  }
};

class IndexRanks {
 public:
  enum class RankScope : u8 { First, FirstOfNode, All };
  virtual ~IndexRanks() = default;
  /// Runs f, which may take hours, on the given ranks while the others wait. Collective. Returns, once all are done,
  /// the result of f on the first rank of the node, or false if it did not run there. An exception on one rank is
  /// thrown on all.
  virtual bool run(RankScope who, const std::function<bool(const IndexBuildOptions&)>& f) const = 0;
};

/// Single process that runs everything itself.
class SingleIndexRank final : public IndexRanks {
 public:
  bool run(RankScope, const std::function<bool(const IndexBuildOptions&)>& f) const override { return f({}); }
};

}  // namespace mcpp
