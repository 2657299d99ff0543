// plan --from_run: a run beside its prediction, and the hardware as it found it.
#pragma once
#include "megatron_cpp/commands/plan/plan_options.h"
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/config/hardware_file.h"
#include "plan/measured_run.h"

namespace mcpp {

/// A run that was measured, with its own configuration and ranks, as far as it wrote them.
struct FormerRun {
  MeasuredRun measured;
  Config config;
  int world_size;
};

/// That of options.from_run. What `options` and `config` do not say of the plan, ranks and vocabulary, is the run's.
FormerRun read_former_run(PlanOptions& options, Config& config);

/// Says how fast a run was, beside what is predicted of it on such hardware, and returns the hardware as it found it,
/// which options.emit_hardware, if given, then has.
HardwareKind hardware_of_run(const PlanOptions& options, const FormerRun& run, HardwareKind kind, const Log& log);

}  // namespace mcpp
