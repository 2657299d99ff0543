// Dynamic distribution of indexed pieces of work over ranks.
#pragma once
#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace mcpp {

/// Notification that a piece was worked through, except for its end.
struct PieceNews {
  i64 piece = 0;
  int rank = 0;  ///< rank that works on it
  std::string text;
};

/// Progress of all ranks. Each update is reported once, identically on all ranks.
struct WorkDone {
  i64 pieces = 0;               ///< number of pieces that have ended
  double amount = 0;            ///< total of the amounts passed to `add`
  std::vector<PieceNews> news;  ///< pieces whose end begins
  std::vector<i64> ended;       ///< pieces that have ended
};

/// Final phase of a piece, such as waiting for other ranks or for a disk. Runs on a separate thread, one piece after
/// another, while the rank works on the next pieces. Must return when `stop` is requested.
using EndOfPiece = std::function<void(const std::stop_token& stop)>;

/// Work on one piece, run on a thread of this rank. Returns the text that is sent to all ranks and the final phase.
/// `add` reports progress; it throws if the work is canceled, and the exception must not be caught.
struct WorkedPiece {
  std::string text;
  EndOfPiece end;
};
using PieceOfWork = std::function<WorkedPiece(i64 piece, const std::function<void(double amount)>& add)>;

/// Processes every piece 0 .. pieces - 1 once, on some rank. Collective over `ranks`. The ranks communicate several
/// times a second, so none of them waits long enough to trigger a watchdog. An error on any rank stops the work and is
/// thrown on all. `progress` is called on each rank after every exchange.
void share_work(Communicator& ranks, i64 pieces, const PieceOfWork& work,
                const std::function<void(const WorkDone&)>& progress);

}  // namespace mcpp
