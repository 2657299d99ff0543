// Comparison of a measured run with its prediction: the parts that deviate, and the hardware rates that the run
// implies.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "model/module_memory.h"
#include "plan/step/step_time.h"

namespace mcpp {

/// Predicted training step.
struct PredictedStep {
  StepTime time;
  std::vector<StepTime> stages;  ///< times by pipeline rank
  double memory_bytes = 0;       ///< maximum memory over ranks
  i64 global_batch_size = 0;
};
PredictedStep predict_step(const PredictionInput& input, double memory_bytes);

/// Measured step, taken from the log of a run. Shares are means over its ranks.
struct MeasuredRun {
  double seconds = 0;
  double bubble = 0, exposed_communication = 0;      ///< shares of `seconds`
  double peak_memory_bytes = 0;                      ///< maximum over ranks; 0 = unknown
  std::map<std::string, double> peak_by_class = {};  ///< peak by class of memory on the rank with the highest peak
  double in_host_bytes = 0, on_disk_bytes = 0;       ///< maximum offloaded bytes over ranks
  std::vector<double> computing_by_rank = {};        ///< seconds per step; empty = unknown
  std::map<std::string, double> groups = {};         ///< seconds per step that ranks wait in each kind of group
  std::map<std::string, double> modules = {};        ///< seconds per step in each module, if traced
  /// Traced bytes by module and class of memory, as the mean over the ranks that have the module.
  std::map<std::string, std::map<std::string, double>> module_bytes = {};
  i64 world_size = 0;       ///< 0 = unknown
  std::string config = {};  ///< configuration of the run, in TOML; "" = unknown

  double computing() const { return seconds * (1 - bubble - exposed_communication); }
};

struct RunPart {
  std::string name;
  double predicted = 0, measured = 0;  ///< seconds or bytes
  bool is_memory = false;

  /// Returns measured / predicted - 1.
  double relative_error() const { return predicted > 0 ? measured / predicted - 1 : 0; }
};
/// Compares the step, its compute, pipeline waits and communication, and also memory if it was measured.
std::vector<RunPart> compare(const StepTime& predicted, double predicted_memory, const MeasuredRun& measured);
/// Compares the compute of each pipeline rank, averaged over its ranks; empty without a pipeline.
std::vector<RunPart> compare_stages(const std::vector<StepTime>& predicted, const MeasuredRun& measured);
/// Compares communication by purpose, if its groups were measured.
std::vector<RunPart> compare_groups(const StepTime& predicted, const MeasuredRun& measured);
/// Compares the embedding, the two halves of each layer, and the output, if they were traced.
std::vector<RunPart> compare_modules(const PredictionInput& input, const MeasuredRun& measured);
/// Compares memory by class and offloaded bytes, each with its maximum over ranks.
std::vector<RunPart> compare_memory(const Layout& layout, const std::vector<MemoryEstimate>& predicted,
                                    const MeasuredRun& measured);
/// Comparison of each traced memory class of a module.
struct ModuleParts {
  std::string name;
  std::vector<RunPart> classes;
};
/// Compares the embedding, the layers and the output, if they were traced. `predicted` is indexed by pipeline rank.
std::vector<ModuleParts> compare_module_memory(const std::vector<MemoryByModule>& predicted,
                                               const MeasuredRun& measured);
/// Returns true if a part deviates by more than 20 % and by more than 2 % of the step or of the memory, which indicates
/// a slow component or different hardware.
bool exceeds_tolerance(const RunPart& part, const MeasuredRun& measured);
/// Returns text like "compute is more than 20 % off: 310.0 ms of a step, predicted 200.0 ms, 55.0 %".
std::string tolerance_warning(const RunPart& part);

/// Measured speed relative to the predicted rates, for compute and for links. `links` is derived only if the predicted
/// step has enough exposed communication, because time in which ranks wait for each other also counts as communication.
struct RunSpeed {
  double compute = 1, links = 1;
};
RunSpeed infer_speed(const StepTime& predicted, const MeasuredRun& measured);
/// Returns the hardware scaled by `speed`. Peaks that the scaled rates exceed are raised with them.
Hardware scale_hardware(Hardware hardware, const RunSpeed& speed);

/// Returns tables of the entire run and of its parts, including deviations.
std::string comparison_text(const std::vector<RunPart>& totals, const std::vector<RunPart>& details,
                            const MeasuredRun& measured);
/// Returns a table of modules by class of memory, including deviations; "" if nothing was traced.
std::string module_memory_text(const std::vector<ModuleParts>& modules, const MeasuredRun& measured);

}  // namespace mcpp
