// Reader for the measurements that a run wrote: metrics.jsonl (monitor/jsonl_sink.h) and traces.
#pragma once
#include "base/file.h"
#include "megatron_cpp/monitor/trace.h"
#include "plan/measured_run.h"

namespace mcpp {

/// Returns the median of the steps logged since the last start, excluding the first. `run` is the file or its folder.
/// Ranks, configuration, memory and module times are included if the run recorded them. They are read from the last
/// start, the last table of ranks, and the newest trace in the folder or its subfolder `traces`. A trace that is
/// unreadable or has a different number of ranks is ignored. Throws BadInput if there is no such file or if it has
/// fewer than two steps.
MeasuredRun read_measured_run(const Path& run);

/// Contents of a trace (monitor/step_trace.h) by module: the mean over the ranks that have it.
struct TracedModules {
  std::map<std::string, double> seconds = {};  ///< seconds per iteration, by module
  BytesByModule bytes = {};
  i64 ranks = 0;  ///< ranks in the trace; 0 = unknown
};
/// Returns the modules of a trace; the result is empty if the file is not a trace of this program.
TracedModules traced_modules(const Path& trace);

}  // namespace mcpp
