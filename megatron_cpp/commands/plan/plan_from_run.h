// Implementation of plan --from_run: compares a run with its prediction and derives the hardware from it.
#pragma once
#include "megatron_cpp/commands/plan/plan_options.h"
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/config/hardware_file.h"
#include "plan/measured_run.h"

namespace mcpp {

/// Measured run with its configuration and number of ranks, as far as it recorded them.
struct RecordedRun {
  MeasuredRun measured;
  Config config;
  int world_size;
};

/// Reads the run of options.from_run. Takes the number of ranks and the vocabulary from it if `options` and `config` do
/// not set them.
RecordedRun read_recorded_run(PlanOptions& options, Config& config);

/// Reports the speed of a run next to the prediction for this hardware. Returns the hardware adjusted to the run, and
/// writes it to options.emit_hardware if given.
HardwareKind infer_hardware(const PlanOptions& options, const RecordedRun& run, HardwareKind kind, const Log& log);

}  // namespace mcpp
