// What a run has written about its steps: metrics.jsonl (monitor/metrics.h).
#pragma once
#include "base/file.h"
#include "megatron_cpp/logging/trace_file.h"
#include "plan/measured_run.h"

namespace mcpp {

/// The median of the steps logged since the last start, after the first. `run`: the file, or the folder it is in.
/// Ranks, configuration, memory and times of modules as far as the run wrote them: its last start, its last table of
/// ranks, and the newest trace in the folder or its folder `traces`. BadInput when there is no such file, and when it
/// has fewer than two lines of steps; a trace that cannot be read, or is of another number of ranks, is left out.
MeasuredRun read_measured_run(const Path& run);

/// What a trace (monitor/step_trace.h) tells of modules, by name: of the ranks that have it the mean.
struct TracedModules {
  std::map<std::string, double> seconds = {};  ///< of an iteration
  BytesByModule bytes = {};
  i64 ranks = 0;  ///< that wrote it; 0 = not known
};
/// Empty when it is no such trace.
TracedModules traced_modules(const Path& trace);

}  // namespace mcpp
