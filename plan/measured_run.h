// A run that was measured, beside what was predicted of it: which part is off, and the hardware as the run found it.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "plan/step/step_time.h"

namespace mcpp {

/// Of a step, as the log of a run has it: shares are means over its ranks.
struct MeasuredRun {
  double seconds = 0;
  double bubble = 0, exposed_communication = 0;      ///< shares of it
  double peak_memory_bytes = 0;                      ///< of the rank that needed most; 0 = not known
  std::map<std::string, double> peak_by_class = {};  ///< of each class of memory, of the rank that needed most of it
  std::map<std::string, double> modules = {};  ///< seconds of a step in each, forward and backward, where it was traced

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
/// Embedding, the two halves of each layer, and output: as far as they were traced.
std::vector<RunPart> compare_modules(const Job& job, const MeasuredRun& measured);
/// Classes of memory, each of the rank that needs most of it.
std::vector<RunPart> compare_memory(const std::vector<MemoryEstimate>& predicted, const MeasuredRun& measured);
/// Of these, those that are so far off that something is slow or the hardware is another: more than 20 %, and of the
/// step more than 2 %.
std::vector<RunPart> much_off(const std::vector<RunPart>& parts);

/// As fast as the run was: rates of computing, and those of links where there was communication that was predicted.
Hardware as_measured(Hardware hardware, const StepTime& predicted, const MeasuredRun& measured);

/// A table of all.
std::string parts_text(const std::vector<RunPart>& parts);
/// The same, and what is off.
std::string comparison_text(const std::vector<RunPart>& parts);

}  // namespace mcpp
