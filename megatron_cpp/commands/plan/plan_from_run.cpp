#include "megatron_cpp/commands/plan/plan_from_run.h"

#include "base/file.h"
#include "base/number_format.h"
#include "megatron_cpp/monitor/metrics/run_metrics.h"
#include "megatron_cpp/setup/layout_conversion.h"
#include "megatron_cpp/setup/layout_search.h"
#include "megatron_cpp/setup/run_summary.h"

namespace mcpp {
namespace {

std::string ranks_text(int ranks) {
  return str(ranks, ranks == 1 ? " rank" : " ranks");
}

/// Returns the header of the hardware file, which states where its values come from.
std::string origin(const PlanOptions& options, const RecordedRun& run, const std::string& layout, double predicted,
                   const RunSpeed& speed) {
  return str("# --hardware=", options.hardware, " as the run in ", options.from_run,
             " found it, by `megatron_cpp plan ", "--from_run`:\n# ", ranks_text(run.world_size), ", ", layout, ", ",
             human_step_seconds(run.measured.seconds), " a step, ", human_step_seconds(predicted), " predicted.\n",
             "# Computing at ", fixed(speed.computing, 3), " times the rates there, links ",
             speed.links == 1 ? "as in the file: too little was sent to measure them"
                              : str("at ", fixed(speed.links, 3), " times theirs"),
             ".\n\n");
}

/// Writes the hardware file. Throws BadInput if it could not be read back because its rates are implausible.
void write_hardware(const std::string& file, const std::string& head, const HardwareKind& kind) {
  const std::string text = head + print_hardware(kind);
  try {
    parse_hardware(text, file);
  } catch (const Error& error) {
    fail(ExitCode::BadInput, "--emit_hardware=", file, ": the run is too far from such hardware for a file of it:\n",
         error.what());
  }
  write_file_atomic(file, text);
}

}  // namespace

RecordedRun read_recorded_run(PlanOptions& options, Config& config) {
  MeasuredRun run = read_measured_run(options.from_run);
  Config input =
      run.config.empty() ? config : parse_stored_config(run.config, options.from_run + ": its configuration");
  if (run.world_size == 0) run.world_size = options.world_size;
  check_input(run.world_size > 0, "--from_run=", options.from_run,
              ": does not state its number of ranks; set --world_size");
  const bool needs_no_world_size = options.scale.empty() && !options.should_minimize_devices();
  if (options.world_size == 0 && needs_no_world_size) options.world_size = run.world_size;
  if (config.model.vocab_size == 0) config.model.vocab_size = input.model.vocab_size;
  const int ranks = static_cast<int>(run.world_size);
  return {std::move(run), std::move(input), ranks};
}

HardwareKind infer_hardware(const PlanOptions& options, const RecordedRun& run, HardwareKind kind, const Log& log) {
  const Hardware& hardware = kind.for_ranks(run.world_size);
  const KernelTraits program;
  Workload work = make_workload(run.config);
  work.expert_imbalance = options.expert_imbalance;
  const PredictionInput input{hardware, program, work, layout_from_config(run.config, run.world_size)};
  const StepTime predicted = predict_configured_step(input, run.config, run.world_size);
  std::vector<RunPart> details = compare_stages(step_time_by_rank(input), run.measured);
  for (RunPart& part : compare_modules(input, run.measured)) details.push_back(std::move(part));
  const std::vector<MemoryEstimate> memory = estimate_memory_by_stage(run.config, run.world_size);
  for (RunPart& part : compare_memory(input.layout, memory, run.measured)) details.push_back(std::move(part));
  const std::vector<RunPart> parts = compare(predicted, max_rank_memory(run.config, run.world_size), run.measured);
  log.info(
      str("the run in ", options.from_run, ", ", ranks_text(run.world_size), ", ", input.layout.describe(), "\n",
          comparison_text(parts, details, run.measured),
          module_memory_text(compare_module_memory(module_memory_by_stage(run.config, run.world_size), run.measured),
                             run.measured)));
  const RunSpeed speed = infer_speed(predicted, run.measured);
  const std::string head = origin(options, run, input.layout.describe(), predicted.seconds, speed);
  for (auto& [ranks, each] : kind.by_ranks) each = scale_hardware(each, speed);
  if (!options.emit_hardware.empty()) {
    write_hardware(options.emit_hardware, head, kind);
    log.info(
        str("the adjusted hardware was written to ", options.emit_hardware, ", for --hardware and launch.sh --replan"));
  }
  return kind;
}

}  // namespace mcpp
