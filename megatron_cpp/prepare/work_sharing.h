// Numbered pieces of work that ranks take as they come to them.
#pragma once
#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace mcpp {

/// A piece that was worked through but for its end, and what is told of it.
struct PieceNews {
  i64 piece = 0;
  int rank = 0;  ///< that has it
  std::string text;
};

/// What all ranks have done. News are told once, on all ranks the same.
struct WorkDone {
  i64 pieces = 0;               ///< that have ended
  double amount = 0;            ///< of what the work counts
  std::vector<PieceNews> news;  ///< of pieces whose end begins
  std::vector<i64> ended;       ///< pieces that have ended
};

/// What is left of a piece, such as waiting for others or for a disk, while the rank works on its next pieces: done in
/// another thread, one end after another. It gives up when it is to stop.
using EndOfPiece = std::function<void(const std::stop_token& stop)>;

/// Work on one piece, in a thread of this rank: what all ranks are told then, and its end. `add` counts how much is
/// done; it throws when the work is to be given up, which must not be caught.
struct WorkedPiece {
  std::string text;
  EndOfPiece end;
};
using PieceOfWork = std::function<WorkedPiece(i64 piece, const std::function<void(double amount)>& add)>;

/// Every piece 0 .. pieces - 1 is done once, by one of the ranks, which meet several times a second: none of them waits
/// so long for another that a watchdog takes it for a hang. An error on any rank ends the work of all and is thrown on
/// all. Called by all of `ranks`; `progress` is called after each meeting, on each.
void share_work(Communicator& ranks, i64 pieces, const PieceOfWork& work,
                const std::function<void(const WorkDone&)>& progress);

}  // namespace mcpp
