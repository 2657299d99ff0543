// Numbered pieces of work that ranks take as they come to them.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace mcpp {

/// A piece that is done, and what is told of it.
struct DonePiece {
  i64 piece = 0;
  int rank = 0;  ///< that did it
  std::string text;
};

/// What all ranks have done.
struct WorkDone {
  i64 pieces = 0;
  double amount = 0;            ///< of what the work counts
  std::vector<DonePiece> news;  ///< pieces that were not told of before, on all ranks the same
};

/// What is left of a piece, such as waiting for a disk: it is done in another thread, while the rank works on its next
/// piece, and gives what all ranks are told.
using EndOfPiece = std::function<std::string()>;

/// Work on one piece, in a thread of this rank. `add` counts how much is done; it throws when the work is to be given
/// up, which must not be caught.
using PieceOfWork = std::function<EndOfPiece(i64 piece, const std::function<void(double amount)>& add)>;

/// Every piece 0 .. pieces - 1 is done once, by one of the ranks, which meet several times a second: none of them waits
/// so long for another that a watchdog takes it for a hang. An error on any rank ends the work of all and is thrown on
/// all. Called by all of `ranks`; `progress` is called after each meeting, on each.
void share_work(Communicator& ranks, i64 pieces, const PieceOfWork& work,
                const std::function<void(const WorkDone&)>& progress);

}  // namespace mcpp
