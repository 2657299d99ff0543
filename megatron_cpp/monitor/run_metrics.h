// What a run has written about its steps: metrics.jsonl (monitor/metrics.h).
#pragma once
#include "base/file.h"
#include "plan/measured_run.h"

namespace mcpp {

/// The median of the steps logged after the first, whose start is no step's. `run`: the file, or the folder it is in.
/// BadInput when there is none, and when it has fewer than two lines of steps.
MeasuredRun read_measured_run(const Path& run);

}  // namespace mcpp
