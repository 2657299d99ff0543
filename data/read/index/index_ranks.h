// The ranks that read the same samples, as building an index sees them.
#pragma once
#include <functional>
#include <stop_token>

#include "base/check.h"

namespace mcpp {

/// How an index is to be built.
struct IndexBuild {
  int copies = 1;             ///< of it that this machine will hold: ranks that each build their own at once
  std::stop_token stop = {};  ///< asks to give it up

  /// Throws Preempted when the work on `what` is to be given up. To be called often while it goes on.
  void check_goes_on(const char* what) const {
    if (stop.stop_requested()) fail(ExitCode::Preempted, "a signal stopped the run while it was building ", what);
  }
};

class IndexRanks {
 public:
  enum class Who : u8 { First, FirstOfNode, All };
  virtual ~IndexRanks() = default;
  /// Runs f, which may take hours, on these ranks, while the others wait; returns on all when all of them are done:
  /// what f gave on the first rank of the node, or false where it did not run there. What it throws on one is thrown on
  /// all. Called by all ranks.
  virtual bool run(Who who, const std::function<bool(const IndexBuild&)>& f) const = 0;
};

/// A process alone, which does all itself.
class OneIndexRank final : public IndexRanks {
 public:
  bool run(Who, const std::function<bool(const IndexBuild&)>& f) const override { return f({}); }
};

}  // namespace mcpp
