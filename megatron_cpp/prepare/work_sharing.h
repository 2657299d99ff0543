// Numbered pieces of work that ranks take as they come to them.
#pragma once
#include <functional>

#include "comm/communicator.h"

namespace mcpp {

/// What all ranks have done.
struct WorkDone {
  i64 pieces = 0;
  double amount = 0;  ///< of what the work counts
};

/// Work on one piece, in a thread of this rank. `add` counts how much is done; it throws when the work is to be given
/// up, which must not be caught.
using PieceOfWork = std::function<void(i64 piece, const std::function<void(double amount)>& add)>;

/// Every piece 0 .. pieces - 1 is done once, by one of the ranks, which meet several times a second: none of them waits
/// so long for another that a watchdog takes it for a hang. An error on any rank ends the work of all and is thrown on
/// all. Called by all of `ranks`; `progress` is called now and then, on each.
void share_work(Communicator& ranks, i64 pieces, const PieceOfWork& work,
                const std::function<void(const WorkDone&)>& progress);

}  // namespace mcpp
