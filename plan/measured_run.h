// A run that was measured, beside what was predicted of it: which part is off, and the hardware as the run found it.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "model/module_memory.h"
#include "plan/step/step_time.h"

namespace mcpp {

/// What was predicted of a step of a training.
struct PredictedStep {
  StepTime time;
  std::vector<StepTime> stages;  ///< by position in the pipeline
  double memory_bytes = 0;       ///< of the rank that needs most
  i64 global_batch_size = 0;
};
PredictedStep predicted_step(const Job& job, double memory_bytes);

/// Of a step, as the log of a run has it: shares are means over its ranks.
struct MeasuredRun {
  double seconds = 0;
  double bubble = 0, exposed_communication = 0;      ///< shares of it
  double peak_memory_bytes = 0;                      ///< of the rank that needed most; 0 = not known
  std::map<std::string, double> peak_by_class = {};  ///< of each class of memory, of the rank that needed most of it
  double in_host_bytes = 0, on_disk_bytes = 0;       ///< kept there instead, of the rank that had most
  std::vector<double> computing_by_rank = {};        ///< seconds of a step; empty = not known
  std::map<std::string, double> groups = {};         ///< seconds of a step that ranks wait in each kind of group
  std::map<std::string, double> modules = {};  ///< seconds of a step in each, forward and backward, where it was traced
  /// Bytes of each module and class of memory, where it was traced: of the ranks that have it the mean.
  std::map<std::string, std::map<std::string, double>> module_bytes = {};
  i64 world_size = 0;       ///< 0 = not known
  std::string config = {};  ///< of the run, in TOML; "" = not known

  double computing() const { return seconds * (1 - bubble - exposed_communication); }
};

struct RunPart {
  std::string name;
  double predicted = 0, measured = 0;  ///< seconds or bytes
  bool is_memory = false;

  /// measured / predicted - 1
  double off() const { return predicted > 0 ? measured / predicted - 1 : 0; }
};
/// The step, computing, waiting in the pipeline, communication; and memory, last, where it was measured.
std::vector<RunPart> compare(const StepTime& predicted, double predicted_memory, const MeasuredRun& measured);
/// Computing of each position in the pipeline, where there are several: the mean of its ranks.
std::vector<RunPart> compare_stages(const std::vector<StepTime>& predicted, const MeasuredRun& measured);
/// Communication by what it is for, where its groups were measured.
std::vector<RunPart> compare_groups(const StepTime& predicted, const MeasuredRun& measured);
/// Embedding, the two halves of each layer, and output: as far as they were traced.
std::vector<RunPart> compare_modules(const Job& job, const MeasuredRun& measured);
/// Classes of memory, and what is elsewhere, each of the rank that needs most of it.
std::vector<RunPart> compare_memory(const Layout& layout, const std::vector<MemoryEstimate>& predicted,
                                    const MeasuredRun& measured);
/// Of a module, each class of its memory that was traced.
struct ModuleParts {
  std::string name;
  std::vector<RunPart> classes;
};
/// Embedding, layers, output, as far as they were traced. `predicted`: of each position in the pipeline.
std::vector<ModuleParts> compare_module_memory(const std::vector<MemoryByModule>& predicted,
                                               const MeasuredRun& measured);
/// Whether a part is so far off that something is slow or the hardware is another: more than 20 %, and more than 2 % of
/// the step, or of the memory.
bool is_much_off(const RunPart& part, const MeasuredRun& measured);
/// "computing is more than 20 % off: 310.0 ms of a step, predicted 200.0 ms, 55.0 %".
std::string much_off_text(const RunPart& part);

/// Times the rates that were predicted with: of computing, and of links where enough of a step was to be communication
/// that nothing hides. Of less it is not told how fast links are: ranks that wait for one another count there, too.
struct RunSpeed {
  double computing = 1, links = 1;
};
RunSpeed speed_of(const StepTime& predicted, const MeasuredRun& measured);
/// Hardware at so many times its speed. Peaks that this goes beyond grow with it.
Hardware at_speed(Hardware hardware, const RunSpeed& speed);

/// Tables of the run as a whole, and of the parts that it is made of, with what is off.
std::string comparison_text(const std::vector<RunPart>& whole, const std::vector<RunPart>& details,
                            const MeasuredRun& measured);
/// A table of modules by classes of memory, with what is off; "" where nothing was traced.
std::string module_memory_text(const std::vector<ModuleParts>& modules, const MeasuredRun& measured);

}  // namespace mcpp
