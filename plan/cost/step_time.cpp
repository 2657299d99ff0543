#include "plan/cost/step_time.h"

#include <algorithm>
#include <map>

#include "model/layer_memory.h"
#include "parallel/pp/lower.h"
#include "parallel/pp/shared_cores.h"
#include "parallel/pp/simulate.h"
#include "plan/cost/kernel_times.h"
#include "plan/cost/real.h"
#include "tensor/wide.h"

namespace mcpp {
namespace {

/// Communication that runs beside `work` adds what of it is left over, and slows down the work.
double beside(double work, double communication, double lost, bool overlaps) {
  if (communication <= 0) return 0;
  return overlaps ? std::max(lost * communication, communication - work) : communication;
}

class Step {
 public:
  explicit Step(const Job& job)
      : job_(job),
        layout_(job.layout),
        collectives_(job.hardware),
        weights_(job.work.model, layout_),
        element_(real(size_of(job.work.dtype))),
        lost_(job.hardware.lost_to_communication()),
        turns_(real(std::min(layout_.world_size, job.hardware.links.ranks.front())) /
               job.hardware.at_once(layout_.world_size)),
        update_(kernel_times(job.hardware, job.program, job.work).update),
        stages_(split_stages(layout_.stage_split(job.work.model))),
        microbatches_(layout_.microbatches(job.work.global_batch_size)) {
    for (const LayerKind kind : {LayerKind::Dense, LayerKind::Experts}) {
      if (!weights_.has_layers(kind)) continue;
      UnitTime &kept = layers_[kind].kept, &again = layers_[kind].again;
      kept = layer_time(job, kind);
      again = recomputed(kept);
      share_weights(kept, kind, false);
      share_weights(again, kind, true);
    }
    const UnitTime embedding = embedding_time(job), output = output_time(job);
    for (const StageContents& stage : stages_) {
      UnitTime t = time_of_layers(stage);
      if (stage.has_embedding) t += embedding;
      if (stage.has_output) t += output;
      times_.push_back(t);
    }
  }

  StepTime time() const {
    StepTime step = busiest();
    if (layout_.pp == 1) {
      step.data_parallel = after_alone();
      step.turns = (turns_ - 1) * step.work.computing();
    } else {
      run_pipeline(step);
    }
    step.data_parallel += weights_before() + tied_embeddings();
    step.optimizer = turns_ * optimizer(step.rank);
    step.data = data();
    step.seconds =
        step.work.total() + step.turns + step.bubble + step.messages + step.data_parallel + step.optimizer + step.data;
    return step;
  }

  std::vector<StepTime> by_rank() const {
    const StepTime all = time();
    std::vector<StepTime> ranks;
    for (int rank = 0; rank < layout_.pp; ++rank) {
      StepTime t = all;
      t.rank = rank;
      t.work = work_of(rank);
      t.optimizer = turns_ * optimizer(rank);
      const double waits = all.seconds - t.work.total() - t.messages - t.data_parallel - t.optimizer - t.data;
      t.turns = std::clamp((turns_ - 1) * t.work.computing(), 0.0, std::max(0.0, waits));
      t.bubble = waits - t.turns;
      ranks.push_back(t);
    }
    return ranks;
  }

  DrawnStep drawn(i64 most) const {
    const i64 round = row_of(layout_.schedule).in_rounds ? layout_.pp : 1;
    const i64 few = std::min(microbatches_, std::max(round, most / round * round));
    Schedule schedule = lowered(few);
    std::vector<ScheduleCosts> in_turns = costs(message_seconds());
    for (ScheduleCosts& c : in_turns) c.forward *= turns_, c.backward_input *= turns_, c.backward_weight *= turns_;
    Timeline timeline = simulate(schedule, in_turns);
    return {std::move(schedule), std::move(timeline), times_};
  }

  double least() const {
    // The first microbatch comes to a rank through all before it, and the last gradient goes back through them.
    double longest = 0, before = 0;
    const bool splits_backward = row_of(layout_.schedule).splits_backward;
    for (int rank = 0; rank < layout_.pp; ++rank) {
      longest = std::max(longest, before + work_of(rank).total());
      const UnitTime& t = times_[static_cast<std::size_t>(rank)];
      before += t.forward.total() + (splits_backward ? 0 : backward_seconds(static_cast<std::size_t>(rank)));
    }
    return longest + optimizer(busiest().rank);
  }

 private:
  UnitTime time_of_layers(const StageContents& stage) const {
    UnitTime sum;
    i64 first = stage.first_layer;
    for (const LayerGroup& group : layer_groups(layout_.recompute, stage.num_layers())) {
      const i64 sparse = weights_.layers(LayerKind::Experts, first, first + group.layers);
      for (const auto& [kind, count] :
           {std::pair(LayerKind::Dense, group.layers - sparse), std::pair(LayerKind::Experts, sparse)}) {
        if (count == 0) continue;
        const LayerTimes& times = layers_.at(kind);
        sum += (group.is_recomputed ? times.again : times.kept) * real(count);
      }
      first += group.layers;
    }
    return sum;
  }

  StageMap map() const {
    return {.ranks = static_cast<int>(layout_.pp),
            .chunks_per_rank = static_cast<int>(layout_.chunks),
            .placement = row_of(layout_.schedule).placement};
  }
  template <class F>
  void for_stages_of(int rank, F f) const {
    for (int chunk = 0; chunk < layout_.chunks; ++chunk) f(static_cast<std::size_t>(map().stage_of(rank, chunk)));
  }

  /// All microbatches of a rank.
  PassTime work_of(int rank) const {
    PassTime work;
    for_stages_of(rank, [&](std::size_t stage) { work += times_[stage].total() * real(microbatches_); });
    return work;
  }

  double busiest_microbatch() const { return busiest().work.total() / real(microbatches_); }
  StepTime busiest() const {
    StepTime most;
    for (int rank = 0; rank < layout_.pp; ++rank) {
      const PassTime work = work_of(rank);
      if (rank == 0 || work.total() > most.work.total()) most = {.work = work, .rank = rank};
    }
    return most;
  }

  /// What ZeRO 2 and 3 communicate for a layer in each microbatch.
  void share_weights(UnitTime& layer, LayerKind kind, bool is_recomputed) const {
    if (layout_.zero_stage < 2) return;
    const bool overlaps = job_.program.overlaps_data_parallel;
    const double gather = layout_.zero_stage >= 3 ? of_layer(kind, element_) : 0;
    const double sum = of_layer(kind, job_.program.gradient_bytes);
    const double reduce = job_.program.sums_gradients_whole ? 2 * sum : sum;
    const double gathers = is_recomputed && job_.program.gathers_again_to_recompute ? 2 : 1;
    layer.forward.data_parallel = beside(layer.forward.total(), gather, lost_, overlaps);
    layer.backward_input.data_parallel = beside(layer.backward_input.total() + layer.backward_weight.total(),
                                                gathers * gather + reduce, lost_, overlaps);
  }

  /// A gather of a layer's weights, or a reduce-scatter of its gradients, of so many bytes each.
  double of_layer(LayerKind kind, double element) const {
    const double tensors = job_.program.gathers_each_tensor ? weights_.layer_tensors() : 1;
    double seconds =
        tensors * collectives_.all_gather(element * weights_.of_layer(kind) / tensors, layout_.shard_group());
    if (kind == LayerKind::Experts)
      seconds += collectives_.all_gather(element * weights_.experts_of_layer(), layout_.expert_shard_group());
    return seconds;
  }

  /// Ranks that share what ZeRO cuts, those that hold the same part of it, and weights that lie on them.
  struct WeightGroup {
    double elements = 0;
    RankGroup shards, instances;
  };
  std::vector<WeightGroup> weight_groups(std::size_t stage) const {
    std::vector<WeightGroup> groups{{weights_.of(stages_[stage]), layout_.shard_group(), layout_.instance_group()}};
    if (const double experts = weights_.experts_of(stages_[stage]); experts > 0)
      groups.push_back({experts, layout_.expert_shard_group(), layout_.expert_instance_group()});
    return groups;
  }

  /// Of a stage's gradients at the end of the step.
  double reduce_seconds(std::size_t stage) const {
    double seconds = 0;
    for (const WeightGroup& group : weight_groups(stage)) {
      const double bytes = job_.program.gradient_bytes * group.elements;
      if (layout_.zero_stage == 0) seconds += collectives_.all_reduce(bytes, group.shards);
      if (layout_.zero_stage == 1) seconds += collectives_.reduce_scatter(bytes, group.shards);
      if (layout_.instances > 1) seconds += collectives_.all_reduce(bytes / real(group.shards.ranks), group.instances);
    }
    return seconds;
  }
  double gather_seconds(std::size_t stage) const {
    if (layout_.zero_stage != 1 && layout_.zero_stage != 2) return 0;
    double seconds = 0;
    for (const WeightGroup& group : weight_groups(stage))
      seconds += collectives_.all_gather(element_ * group.elements, group.shards);
    return seconds;
  }
  double units(std::size_t stage) const { return std::max(1.0, real(stages_[stage].num_layers())); }

  double backward_seconds(std::size_t stage) const {
    return times_[stage].backward_input.total() + times_[stage].backward_weight.total();
  }

  /// What gradients add at the end without a pipeline: all but the first unit's go beside the last backward pass.
  double after_alone() const {
    const double reduce = reduce_seconds(0), window = backward_seconds(0) * (1 - 1 / units(0));
    return std::max(beside(window, reduce, lost_, job_.program.overlaps_data_parallel),
                    job_.program.overlaps_data_parallel ? reduce / units(0) : 0);
  }

  /// Weights that are gathered before the first pass can begin, or beside it.
  double weights_before() const {
    double longest = 0;
    for (int rank = 0; rank < layout_.pp; ++rank) {
      double all = 0;
      for_stages_of(rank, [&](std::size_t stage) { all += gather_seconds(stage); });
      if (!job_.program.overlaps_data_parallel) {
        longest = std::max(longest, all);
        continue;
      }
      const auto first = static_cast<std::size_t>(map().stage_of(rank, 0));
      const double gather = gather_seconds(first);
      longest = std::max({longest, beside(times_[first].forward.total(), gather, lost_, true), gather / units(first)});
    }
    return longest;
  }

  double tied_embeddings() const {
    if (layout_.pp == 1 || job_.work.model.untie_embeddings_and_output_weights ||
        row_of(layout_.schedule).placement == StagePlacement::V)
      return 0;
    return 2 * collectives_.message(job_.program.gradient_bytes * weights_.vocabulary(),
                                    (layout_.pp - 1) * layout_.pipeline_stride());
  }

  double optimizer(int rank) const {
    double elements = 0;
    for_stages_of(rank, [&](std::size_t stage) {
      for (const WeightGroup& group : weight_groups(stage))
        elements += group.elements / (layout_.zero_stage > 0 ? real(group.shards.ranks) : 1);
    });
    const double here = elements * (1 - layout_.share_elsewhere()), elsewhere = elements - here;
    return job_.hardware.slowest(layout_.world_size) * update_ * here + seconds_elsewhere(elsewhere) +
           collectives_.all_reduce(4, {.ranks = layout_.world_size, .stride = 1});  // of the norm
  }

  /// Tokens as data files have them, and tokens and targets as they go to the device.
  double data() const {
    const ModelConfig& m = job_.work.model;
    const HostRates& host = job_.hardware.host;
    const double tokens = real(microbatches_ * layout_.micro_batch_size * m.seq_length);
    const double of_token = m.vocab_size > (i64{1} << 16) ? 4 : 2;
    return (host.nvme_bandwidth > 0 ? tokens * of_token / (1e9 * host.nvme_bandwidth) : 0) +
           (host.link_bandwidth > 0 ? tokens * 8 / (1e9 * host.link_bandwidth) : 0);
  }

  /// To update so many weights whose states are on the host or a disk: their gradients go there, the weights come back.
  double seconds_elsewhere(double elements) const {
    if (elements <= 0) return 0;
    const HostRates& host = job_.hardware.host;
    const double states = 4 * (job_.work.states.of_matrices + job_.work.states.master(job_.work.dtype));
    const double moved = elements * (4 + 2 * element_) / (1e9 * host.link_bandwidth);
    const double updated = elements * (4 + 2 * states + element_) / (1e9 * host.memory_bandwidth);
    const bool is_disk = layout_.states_place == StatesPlace::Disk;
    const double read_and_written = is_disk ? 2 * states * elements / (1e9 * host.nvme_bandwidth) : 0;
    return moved + std::max(updated, read_and_written);
  }

  std::vector<ScheduleCosts> costs(double message) const {
    std::vector<ScheduleCosts> list;
    for (const UnitTime& t : times_)
      list.push_back({.forward = t.forward.total(),
                      .backward_input = t.backward_input.total(),
                      .backward_weight = t.backward_weight.total(),
                      .message = message});
    return list;
  }

  struct Run {
    double seconds = 0, reduced = 0;  ///< until the last pass ends; until all gradients are summed
  };

  Schedule lowered(i64 microbatches) const {
    return lower(make_schedule(layout_.schedule, static_cast<int>(layout_.pp), static_cast<int>(microbatches),
                               static_cast<int>(layout_.chunks)));
  }

  Run run(i64 microbatches, double message) const {
    const Schedule schedule = lowered(microbatches);
    if (turns_ > 1) return run_in_turns(schedule, message);
    const Timeline timeline = simulate(schedule, costs(message));
    Run result{.seconds = timeline.makespan, .reduced = timeline.makespan};
    for (const auto& actions : timeline.per_rank) result.reduced = std::max(result.reduced, reduced_at(actions));
    return result;
  }

  /// On shared cores gradients are summed once all is computed: beside it there is no core.
  Run run_in_turns(const Schedule& schedule, double message) const {
    Run result{.seconds = makespan_on_shared_cores(schedule, costs(message), real(layout_.pp) / turns_)};
    double longest = 0;
    for (int rank = 0; rank < layout_.pp; ++rank) {
      double sums = 0;
      for_stages_of(rank, [&](std::size_t stage) { sums += reduce_seconds(stage); });
      longest = std::max(longest, sums);
    }
    result.reduced = result.seconds + longest;
    return result;
  }

  /// When the sums of a rank's gradients are there. They go one after another, each beside the passes from the end of
  /// its stage's last on.
  double reduced_at(const std::vector<TimedAction>& actions) const {
    const bool overlaps = job_.program.overlaps_data_parallel;
    double at = 0, computed = 0, all = 0;
    for (const TimedAction& timed : actions) {
      computed = std::max(computed, timed.end);
      if (timed.action.kind != ActionKind::ReduceGrad) continue;
      const auto stage = static_cast<std::size_t>(timed.action.stage);
      const double seconds = reduce_seconds(stage), parts = units(stage);
      all += seconds;
      at = std::max(std::max(at, timed.begin - backward_seconds(stage) * (1 - 1 / parts)) + seconds,
                    timed.begin + seconds / parts);
    }
    if (!overlaps) return computed + all;
    return std::max(at, computed + lost_ * all);
  }

  /// A schedule repeats itself once the pipeline is full: what more rounds of microbatches take follows from two runs.
  Run run_all(double message) const {
    const i64 round = layout_.pp, few = 4 * round + microbatches_ % round;
    if (microbatches_ <= few + round) return run(microbatches_, message);
    const Run short_run = run(few, message), longer = run(few + round, message);
    const double round_seconds = std::max(longer.seconds - short_run.seconds, real(round) * busiest_microbatch());
    const double more = real((microbatches_ - few) / round) * round_seconds;
    return {.seconds = short_run.seconds + more, .reduced = short_run.reduced + more};
  }

  double message_seconds() const {
    const double bytes = real(residual_bytes(job_.work.model, layout_.activations(job_.work)));
    const bool scatters = job_.program.scatters_messages && !layout_.sequence_parallel;
    double message = collectives_.message(scatters ? bytes / real(layout_.tp) : bytes, layout_.pipeline_stride());
    if (scatters) message += collectives_.all_gather(bytes, layout_.tp_group());
    return message;
  }

  void run_pipeline(StepTime& step) const {
    const Run free = run_all(0), real_run = run_all(message_seconds());
    const double waits = std::max(0.0, free.seconds - step.work.total());
    step.turns = std::min(waits, (turns_ - 1) * step.work.computing());
    step.bubble = waits - step.turns;
    step.messages = real_run.seconds - free.seconds;
    step.data_parallel = real_run.reduced - real_run.seconds;
  }

  const Job& job_;
  const Layout& layout_;
  Collectives collectives_;
  WeightCounts weights_;
  double element_, lost_;
  double turns_;  // ranks of a machine for each that can compute at a time
  double update_;
  std::vector<StageContents> stages_;
  i64 microbatches_;
  struct LayerTimes {
    UnitTime kept, again;
  };
  std::map<LayerKind, LayerTimes> layers_;
  std::vector<UnitTime> times_;  // by stage
};

}  // namespace

StepTime step_time(const Job& job) {
  return Step(job).time();
}

std::vector<StepTime> step_time_by_rank(const Job& job) {
  return Step(job).by_rank();
}

DrawnStep drawn_step(const Job& job, i64 most_microbatches) {
  return Step(job).drawn(most_microbatches);
}

double least_seconds(const Job& job) {
  return Step(job).least();
}

}  // namespace mcpp
