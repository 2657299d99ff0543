#include "plan/step/pipeline_run.h"

#include <algorithm>

#include "base/integer_math.h"
#include "parallel/pp/schedule.h"
#include "parallel/pp/simulate.h"

namespace mcpp {

double StageWork::units() const {
  return std::max(1.0, real(contents.num_layers()));
}

PipelineRun::PipelineRun(const PredictionInput& input, std::vector<StageWork> stages)
    : input_(input),
      layout_(input.layout),
      stages_(std::move(stages)),
      map_{.ranks = static_cast<int>(layout_.pp),
           .chunks_per_rank = static_cast<int>(layout_.chunks),
           .placement = row_of(layout_.schedule).placement},
      microbatches_(layout_.microbatches(input.work.global_batch_size)),
      oversubscription_(real(std::min(layout_.world_size(), input.hardware.links.ranks.front())) /
                        input.hardware.concurrent_ranks(layout_.world_size())) {}

PassTime PipelineRun::rank_work(int rank) const {
  PassTime work;
  for_each_stage_of(rank, [&](const StageWork& stage) { work += stage.passes.total() * real(microbatches_); });
  return work;
}

int PipelineRun::busiest() const {
  int busiest = 0;
  double max_seconds = 0;
  for (int rank = 0; rank < map_.ranks; ++rank) {
    const double seconds = rank_work(rank).total();
    if (seconds > max_seconds) max_seconds = seconds, busiest = rank;
  }
  return busiest;
}

const Schedule& PipelineRun::lowered(i64 microbatches) const {
  const auto [it, is_new] = lowered_.try_emplace(microbatches);
  if (is_new) it->second = lower(layout_.make_schedule(microbatches));
  return it->second;
}

std::vector<ScheduleCosts> PipelineRun::costs(double message_factor, double oversubscription) const {
  std::vector<ScheduleCosts> list;
  for (const StageWork& stage : stages_)
    list.push_back({.forward = oversubscription * stage.passes.forward.total(),
                    .backward_input = oversubscription * stage.passes.backward_input.total(),
                    .backward_weight = oversubscription * stage.passes.backward_weight.total(),
                    .message = message_factor * stage.message_seconds});
  return list;
}

std::pair<Schedule, Timeline> PipelineRun::simulate_first(i64 microbatches) const {
  const i64 round = row_of(layout_.schedule).needs_multiple_of_ranks ? layout_.pp : 1;
  const Schedule& schedule = lowered(std::min(microbatches_, std::max(round, microbatches / round * round)));
  return {schedule, simulate(schedule, costs(1, oversubscription_))};
}

PipelineRun::Times PipelineRun::simulate_all(i64 microbatches, double message_factor) const {
  const Schedule& schedule = lowered(microbatches);
  if (oversubscription_ > 1) return simulate_oversubscribed(schedule, message_factor);
  const Timeline timeline = simulate(schedule, costs(message_factor, 1));
  Times times{.seconds = timeline.makespan, .reduced = timeline.makespan};
  for (const auto& actions : timeline.per_rank) times.reduced = std::max(times.reduced, last_reduction_end(actions));
  return times;
}

/// On shared cores gradients are reduced after all compute because no core is free during it.
PipelineRun::Times PipelineRun::simulate_oversubscribed(const Schedule& schedule, double message_factor) const {
  const double seconds =
      oversubscribed_makespan(schedule, costs(message_factor, 1), real(layout_.pp) / oversubscription_);
  double longest = 0;
  for (int rank = 0; rank < map_.ranks; ++rank) {
    double sums = 0;
    for_each_stage_of(rank, [&](const StageWork& stage) { sums += stage.reduce_seconds; });
    longest = std::max(longest, sums);
  }
  return {.seconds = seconds, .reduced = seconds + longest};
}

/// Returns the time at which a rank's gradients are reduced. Reductions are serialized, each concurrent with the passes
/// after its stage's last one.
double PipelineRun::last_reduction_end(const std::vector<TimedAction>& actions) const {
  double reduced = 0, computed = 0, all = 0;
  for (const TimedAction& timed : actions) {
    computed = std::max(computed, timed.end);
    if (timed.action.kind != ActionKind::ReduceGrad) continue;
    const StageWork& work = stage(timed.action.stage);
    all += work.reduce_seconds;
    reduced = std::max(
        std::max(reduced, timed.begin - work.backward_seconds() * (1 - 1 / work.units())) + work.reduce_seconds,
        timed.begin + work.reduce_seconds / work.units());
  }
  if (!input_.overlaps_data_parallel()) return computed + all;
  return std::max(reduced, computed + input_.hardware.communication_slowdown() * all);
}

/// A schedule is periodic once the pipeline is full, so two runs give the time of further rounds of microbatches.
PipelineRun::Times PipelineRun::run(double message_factor) const {
  const i64 round = layout_.pp, base_microbatches = 4 * round + microbatches_ % round;
  if (microbatches_ <= base_microbatches + round) return simulate_all(microbatches_, message_factor);
  const Times short_run = simulate_all(base_microbatches, message_factor),
              longer_run = simulate_all(base_microbatches + round, message_factor);
  const double busiest_microbatch = rank_work(busiest()).total() / real(microbatches_);
  const double round_seconds = std::max(longer_run.seconds - short_run.seconds, real(round) * busiest_microbatch);
  const double remaining_seconds = real((microbatches_ - base_microbatches) / round) * round_seconds;
  return {.seconds = short_run.seconds + remaining_seconds, .reduced = short_run.reduced + remaining_seconds};
}

}  // namespace mcpp
