// Traces of all ranks in one file in Chrome's Trace Event Format, for ui.perfetto.dev and chrome://tracing.
#pragma once
#include <map>
#include <string>
#include <utility>

#include "base/file.h"
#include "comm/communicator.h"
#include "tensor/profiler.h"

namespace mcpp {

// Clock synchronization across hosts.

/// Offset of this rank's steady clock from that of rank 0, in seconds.
struct ClockOffset {
  double at = 0;           ///< time of the comparison, on this rank's clock
  double seconds = 0;      ///< offset to add to this rank's clock; 0 if both may be the same clock
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

/// Bytes by module name and memory class.
using BytesByModule = std::map<std::string, std::map<std::string, double>>;

/// Trace of one rank.
struct RankTrace {
  std::string name;  ///< rank name shown by viewers
  Profiler::Trace trace;
  ClockOffset before, after;             ///< clock comparisons before and after the trace
  std::map<std::string, double> totals;  ///< totals for the rank during the trace
  BytesByModule modules = {};            ///< memory used by each module of the rank's part of the model
};

/// Returns the ranges as elements of the "traceEvents" array, one per line, comma-separated. Rank r is process r. Times
/// are in microseconds since `before.reference`.
std::string trace_events(const RankTrace& trace, int rank);

/// Writes the traces of all ranks from rank 0. Collective over `world`, which must support tensors in host memory.
/// "otherData" contains the figures by rank and the members of `facts`, a JSON object. Returns, on rank 0, the reason
/// why the file could not be written, or "".
std::string write_trace_file(const Path& path, const RankTrace& local, const std::string& facts, Communicator& world);

}  // namespace mcpp
