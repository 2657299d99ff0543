// The clocks of several machines, compared.
#pragma once
#include "comm/communicator.h"

namespace mcpp {

/// Where this rank's steady clock stands against that of rank 0, in seconds.
struct ClockOffset {
  double at = 0;           ///< when they were compared, by the clock of this rank
  double seconds = 0;      ///< to be added to it; 0 where it may be the same clock
  double uncertainty = 0;  ///< half the quickest round trip of a message
  double reference = 0;    ///< a moment, by the clock of rank 0; the same on all ranks
};

/// The steady clock of this process.
double steady_seconds();

/// By round trips of messages between rank 0 and each other. Called by all ranks of `world`, a group that carries
/// tensors in host memory.
ClockOffset compare_clocks(Communicator& world);

/// What a moment of this rank's clock is on rank 0's, which two comparisons frame: clocks run apart evenly, or not at
/// all as far as the comparisons can tell.
double on_first_rank(double moment, const ClockOffset& before, const ClockOffset& after);

}  // namespace mcpp
