// The passes of a step through the stages of a pipeline, as its schedule has them: run by the simulator of
// `megatron_cpp schedule`.
#pragma once
#include <map>
#include <utility>
#include <vector>

#include "parallel/pp/simulate.h"
#include "parallel/pp/stages.h"
#include "plan/cost/job.h"
#include "plan/cost/pass_time.h"

namespace mcpp {

/// Of one stage.
struct StageWork {
  StageContents contents;
  UnitTime passes;  ///< of a microbatch
  double sums = 0;  ///< seconds of its gradients over links, once a step
  double ends = 0;  ///< that its first and its last pass of a step take longer than others (RowWaits)

  double backward_seconds() const { return passes.backward_input.total() + passes.backward_weight.total(); }
  /// Parts that its gradients are summed in, one after another as backward leaves them.
  double units() const;
};

/// Of a job that outlives it. Not for several threads.
class PipelineRun {
 public:
  PipelineRun(const Job& job, std::vector<StageWork> stages);

  /// By stage.
  const std::vector<StageWork>& stages() const { return stages_; }
  const StageWork& first_of(int rank) const { return stage(map_.stage_of(rank, 0)); }
  template <class F>
  void for_stages_of(int rank, F f) const {
    for (int chunk = 0; chunk < map_.chunks_per_rank; ++chunk) f(stage(map_.stage_of(rank, chunk)));
  }
  i64 microbatches() const { return microbatches_; }
  /// Ranks of a machine for each that can compute at a time.
  double turns() const { return turns_; }

  /// All microbatches of a rank, and the rank that has most.
  PassTime work_of(int rank) const;
  int busiest() const;

  struct Times {
    double seconds = 0, reduced = 0;  ///< until the last pass ends; until all gradients are summed
  };
  /// Where a message to the next stage takes so long.
  Times run(double message) const;
  /// The first `microbatches`, or fewer as the schedule needs.
  std::pair<Schedule, Timeline> begin(i64 microbatches, double message) const;

 private:
  const StageWork& stage(int index) const { return stages_[static_cast<std::size_t>(index)]; }
  const Schedule& lowered(i64 microbatches) const;
  std::vector<ScheduleCosts> costs(double message, double turns) const;
  Times simulated(i64 microbatches, double message) const;
  Times in_turns(const Schedule& schedule, double message) const;
  double reduced_at(const std::vector<TimedAction>& actions) const;

  const Job& job_;
  const Layout& layout_;
  std::vector<StageWork> stages_;
  StageMap map_;
  i64 microbatches_;
  double turns_;
  mutable std::map<i64, Schedule> lowered_;  // as often as one is run, with other costs, it is made once
};

}  // namespace mcpp
