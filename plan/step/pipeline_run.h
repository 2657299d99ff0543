// Simulates the passes of a step through the stages of a pipeline in the order of its schedule, with the simulator of
// `megatron_cpp schedule`.
#pragma once
#include <map>
#include <utility>
#include <vector>

#include "parallel/pp/simulate.h"
#include "parallel/stages.h"
#include "plan/cost/rank_cost_model.h"
#include "plan/cost/workload.h"

namespace mcpp {

/// Work of one stage.
struct StageWork {
  StageContents contents;
  UnitTime passes;              ///< times for one microbatch
  double message_seconds = 0;   ///< seconds of a message to or from the next stage
  double reduce_seconds = 0;    ///< seconds per step to reduce the stage's gradients over links
  double boundary_exposed = 0;  ///< additional seconds of the stage's first and last pass of a step (ExposedComm)

  double backward_seconds() const { return passes.backward_input.total() + passes.backward_weight.total(); }
  /// Returns the number of parts in which the stage's gradients are reduced during backward.
  double units() const;
};

/// Simulation of the pipeline of a layout. Not thread-safe.
class PipelineRun {
 public:
  PipelineRun(const PredictionInput& input, std::vector<StageWork> stages);

  /// Returns the stages in pipeline order.
  const std::vector<StageWork>& stages() const { return stages_; }
  const StageWork& first_stage(int rank) const { return stage(map_.stage_of(rank, 0)); }
  template <class F>
  void for_each_stage_of(int rank, F f) const {
    for (int chunk = 0; chunk < map_.chunks_per_rank; ++chunk) f(stage(map_.stage_of(rank, chunk)));
  }
  i64 microbatches() const { return microbatches_; }
  /// Returns the ratio of ranks per host to ranks that can compute at the same time.
  double oversubscription() const { return oversubscription_; }

  /// Returns the compute time of all microbatches of a rank. busiest() returns the rank with the largest time.
  PassTime rank_work(int rank) const;
  int busiest() const;

  struct Times {
    double seconds = 0, reduced = 0;  ///< time until the last pass ends, and until all gradients are reduced
  };
  /// Simulates a step. `message_factor` multiplies the time of messages.
  Times run(double message_factor) const;
  /// Simulates the first `microbatches` microbatches, rounded down to a number that the schedule supports.
  std::pair<Schedule, Timeline> simulate_first(i64 microbatches) const;

 private:
  const StageWork& stage(int index) const { return stages_[static_cast<std::size_t>(index)]; }
  const Schedule& lowered(i64 microbatches) const;
  std::vector<ScheduleCosts> costs(double message_factor, double oversubscription) const;
  Times simulate_all(i64 microbatches, double message_factor) const;
  Times simulate_oversubscribed(const Schedule& schedule, double message_factor) const;
  double last_reduction_end(const std::vector<TimedAction>& actions) const;

  const PredictionInput& input_;
  const Layout& layout_;
  std::vector<StageWork> stages_;
  StageMap map_;
  i64 microbatches_;
  double oversubscription_;
  mutable std::map<i64, Schedule> lowered_;  // cache: a schedule is run repeatedly with different costs
};

}  // namespace mcpp
