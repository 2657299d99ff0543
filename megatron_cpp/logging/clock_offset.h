// Clock synchronization across machines.
#pragma once
#include "comm/communicator.h"

namespace mcpp {

/// Offset of this rank's steady clock from that of rank 0, in seconds.
struct ClockOffset {
  double at = 0;           ///< time of the comparison, on this rank's clock
  double seconds = 0;      ///< to be added to this rank's clock; 0 if both may be the same clock
  double uncertainty = 0;  ///< half of the fastest message round trip
  double reference = 0;    ///< reference time on the clock of rank 0; identical on all ranks
};

/// Returns the steady clock of this process, in seconds.
double steady_seconds();

/// Measures the offset by message round trips between rank 0 and each other rank. Collective over `world`, which must
/// support tensors in host memory.
ClockOffset measure_clock_offset(Communicator& world);

/// Converts a time on this rank's clock to rank 0's, given a comparison before and one after it. Clock drift is
/// interpolated linearly, or ignored if it is within the uncertainty.
double to_rank0_clock(double moment, const ClockOffset& before, const ClockOffset& after);

}  // namespace mcpp
