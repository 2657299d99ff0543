// Ranks that read the same samples, as seen by the index builder.
#pragma once
#include <functional>
#include <stop_token>

#include "base/check.h"

namespace mcpp {

/// Options for building an index.
struct IndexBuild {
  int copies = 1;             ///< number of ranks on this machine that build their own copy at the same time
  std::stop_token stop = {};  ///< requests cancellation

  /// Throws Preempted if building `what` was canceled. Call it often during a long build.
  void check_goes_on(const char* what) const {
    if (stop.stop_requested()) fail(ExitCode::Preempted, "a signal stopped the run while it was building ", what);
  }
};

class IndexRanks {
 public:
  enum class Who : u8 { First, FirstOfNode, All };
  virtual ~IndexRanks() = default;
  /// Runs f, which may take hours, on the given ranks while the others wait. Collective. Returns, once all are done,
  /// the result of f on the first rank of the node, or false if it did not run there. An exception on one rank is
  /// thrown on all.
  virtual bool run(Who who, const std::function<bool(const IndexBuild&)>& f) const = 0;
};

/// Single process that runs everything itself.
class OneIndexRank final : public IndexRanks {
 public:
  bool run(Who, const std::function<bool(const IndexBuild&)>& f) const override { return f({}); }
};

}  // namespace mcpp
