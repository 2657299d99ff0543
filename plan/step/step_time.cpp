#include "plan/step/step_time.h"

#include <algorithm>
#include <map>

#include "base/integer_math.h"
#include "base/strings.h"
#include "model/layer_memory.h"
#include "plan/cost/kernel_times.h"
#include "plan/step/pipeline_run.h"
#include "plan/step/weight_traffic.h"

namespace mcpp {

double OffloadCost::element() const {
  return real(size_of(input_.work.dtype));
}

double OffloadCost::link_seconds(double bytes) const {
  const double rate = 1e9 * input_.hardware.host.link_bandwidth;
  return rate > 0 ? bytes / rate : input_.hardware.traffic_seconds(2 * bytes);
}

double OffloadCost::host_memory_seconds(double bytes) const {
  const double rate = 1e9 * input_.hardware.host.memory_bandwidth;
  return rate > 0 ? bytes / rate : input_.hardware.traffic_seconds(bytes);
}

void OffloadCost::add_to(UnitTime& passes, const StageContents& stage, const WeightFetchCounts& weights) const {
  double activations = 0;
  if (layout_.activations_tier != OffloadTier::Device) {
    LayerSizes& sizes = input_.measurements->sizes.get(input_.activations());
    activations = real(stage_activations(sizes, stage).offloaded);
  }
  // If the node has a secondary weight shard, weights are gathered once per step, which is negligible.
  const bool fetches_weights = layout_.params_tier != OffloadTier::Device && !layout_.has_secondary_shard();
  const auto wait = [&](PassTime& pass, double weight_count, double overlapped_seconds) {
    const double bytes = fetches_weights ? element() * weight_count : 0;
    const double disk_bytes = (layout_.activations_tier == OffloadTier::File ? activations : 0) +
                              (layout_.params_tier == OffloadTier::File ? bytes : 0);
    pass.offloaded += link_seconds(activations + bytes) + checksum_seconds(disk_bytes);
    if (disk_bytes > 0) pass.offloaded += std::max(0.0, disk_seconds(disk_bytes) - pass.total() - overlapped_seconds);
  };
  wait(passes.forward, weights.forward, 0);
  wait(passes.backward_input, weights.backward, passes.backward_weight.total());
}

double OffloadCost::update_seconds(double weights) const {
  const double offloaded_weights = weights * layout_.effective_offloaded_fraction(), element_bytes = element();
  const double states = 4 * (input_.work.states.matrix_states + input_.work.states.master(input_.work.dtype));
  double link_bytes = offloaded_weights * (4 + 2 * element_bytes), disk_bytes = 0;
  if (layout_.states_tier == OffloadTier::File) disk_bytes += 2 * states * offloaded_weights;
  if (layout_.params_tier != OffloadTier::Device) link_bytes += element_bytes * weights;
  if (layout_.params_tier == OffloadTier::File) disk_bytes += 2 * element_bytes * weights;
  return link_seconds(link_bytes) +
         std::max(host_update_seconds(offloaded_weights, states) + checksum_seconds(disk_bytes),
                  disk_bytes > 0 ? disk_seconds(disk_bytes) : 0);
}

/// Returns the time of updates in host memory; on CPUs, which are their own host, the time of resident weights.
double OffloadCost::host_update_seconds(double weights, double states) const {
  if (input_.hardware.host.memory_bandwidth > 0) return host_memory_seconds(weights * (4 + 2 * states + element()));
  return weights * kernel_times(input_.hardware, input_.program, input_.work).update;
}

std::vector<std::string> missing_rates(const Hardware& hardware, const Layout& layout) {
  std::vector<std::string> errors;
  if (layout.uses(OffloadTier::File) && hardware.host.nvme_bandwidth <= 0)
    errors.push_back(str("host.nvme_bandwidth: is unknown for ", hardware.device.name,
                         ", but the layout offloads to a disk (", layout.describe(), ")"));
  return errors;
}

namespace {

class Step {
 public:
  /// `sums_gradients` is false only for lower_bound(), which is called for many layouts and ignores gradient reduction.
  explicit Step(const PredictionInput& input, bool sums_gradients = true)
      : input_(input),
        layout_(input.layout),
        collectives_(input.hardware),
        traffic_(input),
        offload_cost_(input),
        layers_(layer_times()),
        update_(kernel_times(input.hardware, input.program, input.work).update),
        pipeline_(input, stages(sums_gradients)) {}

  StepTime time() const {
    StepTime step;
    step.rank = pipeline_.busiest();
    step.work = pipeline_.rank_work(step.rank);
    if (layout_.pp == 1) {
      step.data_parallel = exposed_reduce_without_pipeline();
      step.core_wait = (pipeline_.oversubscription() - 1) * step.work.computing();
    } else {
      run_pipeline(step);
    }
    step.data_parallel += exposed_initial_gather() + tied_embeddings() + max_over_ranks([&](const StageWork& stage) {
                            return stage.boundary_exposed + traffic_.reduce(stage.contents).device +
                                   traffic_.gather(stage.contents).device;
                          });
    step.optimizer = pipeline_.oversubscription() * optimizer(step.rank);
    step.data = data();
    step.seconds = step.work.total() + step.core_wait + step.bubble + step.messages + step.data_parallel +
                   step.optimizer + step.data;
    return step;
  }

  std::vector<StepTime> times_by_rank() const {
    const StepTime all = time();
    std::vector<StepTime> ranks;
    for (int rank = 0; rank < layout_.pp; ++rank) {
      StepTime t = all;
      t.rank = rank;
      t.work = pipeline_.rank_work(rank);
      t.optimizer = pipeline_.oversubscription() * optimizer(rank);
      const double waits = all.seconds - t.work.total() - t.messages - t.data_parallel - t.optimizer - t.data;
      t.core_wait = std::clamp((pipeline_.oversubscription() - 1) * t.work.computing(), 0.0, std::max(0.0, waits));
      t.bubble = waits - t.core_wait;
      ranks.push_back(t);
    }
    return ranks;
  }

  StepTimeline timeline(i64 max_microbatches) const {
    auto [schedule, timeline] = pipeline_.simulate_first(max_microbatches);
    StepTimeline result{.schedule = std::move(schedule), .timeline = std::move(timeline), .stages = {}};
    for (const StageWork& stage : pipeline_.stages()) result.stages.push_back(stage.passes);
    return result;
  }

  double lower_bound() const {
    // The first microbatch reaches a rank through all earlier ones, and the last gradient returns through them.
    double longest = 0, before = 0;
    const bool splits_backward = row_of(layout_.schedule).splits_backward;
    for (int rank = 0; rank < layout_.pp; ++rank) {
      longest = std::max(longest, before + pipeline_.rank_work(rank).total());
      const StageWork& stage = pipeline_.stages()[static_cast<std::size_t>(rank)];
      before += stage.passes.forward.total() + (splits_backward ? 0 : stage.backward_seconds());
    }
    return longest + optimizer(pipeline_.busiest());
  }

 private:
  struct LayerTimes {
    UnitTime saved, recomputed;
    UnitTraffic traffic, recomputed_traffic;

    const UnitTime& time(bool is_recomputed) const { return is_recomputed ? recomputed : saved; }
  };

  /// Returns the times of a layer of each kind of block.
  std::vector<LayerTimes> layer_times() const {
    std::vector<LayerTimes> all;
    const BlockKinds& blocks = traffic_.weights().blocks();
    for (std::size_t kind = 0; kind < blocks.kinds.size(); ++kind) {
      LayerTimes& times = all.emplace_back();
      times.saved = layer_time(input_, blocks.kinds[kind], blocks.first_layers[kind]);
      times.recomputed = add_full_recompute(times.saved);
      if (layout_.recompute.shards_saved_inputs)
        times.recomputed.backward_input.tensor_parallel +=
            collectives_.all_gather(real(residual_bytes(input_.work.model, input_.activations())), layout_.tp_group());
      times.traffic = traffic_.layer_traffic(kind, false);
      times.recomputed_traffic = traffic_.layer_traffic(kind, true);
    }
    return all;
  }

  std::vector<StageWork> stages(bool sums_gradients) const {
    const UnitTime embedding = embedding_time(input_);
    const double message = message_seconds(1);
    std::vector<StageWork> list;
    for (const StageContents& contents : split_stages(layout_, input_.work.model.num_layers)) {
      UnitTime passes = time_of_layers(contents);
      const UnitTime output = output_time(input_, contents);
      if (contents.has_embedding) passes += embedding;
      passes += output;
      const ExposedComm waits =
          layout_.zero_stage < 2 ? ExposedComm{} : exposed_comm(unit_costs(contents, embedding, output), traffic_);
      passes.forward.data_parallel += waits.forward;
      passes.backward_input.data_parallel += waits.backward;
      if (layout_.params_tier != OffloadTier::Device || layout_.activations_tier != OffloadTier::Device)
        offload_cost_.add_to(passes, contents, weight_fetches(contents));
      const double sums = sums_gradients ? traffic_.reduce(contents).links : 0;
      list.push_back({.contents = contents,
                      .passes = passes,
                      .message_seconds = contents.sends_predictions()
                                             ? message_seconds(1 + input_.work.model.mtp_num_layers)
                                             : message,
                      .reduce_seconds = sums,
                      .boundary_exposed = waits.boundary_exposed});
    }
    return list;
  }

  WeightFetchCounts weight_fetches(const StageContents& stage) const {
    const double stored_weights = traffic_.stored_weights(stage);
    return {.forward = stored_weights + traffic_.regathered_weights(stage), .backward = stored_weights};
  }

  /// Calls f(group, times, is_recomputed, count) for the layers of each kind in each recomputation group of a stage.
  template <class F>
  void for_each_layer_kind(const StageContents& stage, F f) const {
    i64 first = stage.first_layer;
    std::size_t group_index = 0;
    for (const LayerGroup& group : layer_groups(layout_.recompute, stage.num_layers())) {
      const std::vector<i64> counts = traffic_.weights().blocks().count(first, first + group.layers);
      for (std::size_t kind = 0; kind < counts.size(); ++kind)
        if (counts[kind] > 0) f(group_index, layers_[kind], group.is_recomputed, counts[kind]);
      first += group.layers;
      ++group_index;
    }
  }

  UnitTime time_of_layers(const StageContents& stage) const {
    UnitTime sum;
    for_each_layer_kind(stage, [&](std::size_t, const LayerTimes& times, bool is_recomputed, i64 count) {
      sum += times.time(is_recomputed) * real(count);
    });
    return sum;
  }

  /// Returns the units of a stage in ZeRO 2 and 3: each group of layers is one.
  std::vector<UnitCost> unit_costs(const StageContents& stage, const UnitTime& embedding,
                                   const UnitTime& output) const {
    std::vector<UnitCost> units;
    const auto add = [&](const UnitTime& time, const UnitTraffic& traffic, i64 count) {
      units.back().forward += time.forward.total() * real(count);
      units.back().backward += (time.backward_input.total() + time.backward_weight.total()) * real(count);
      for (i64 i = 0; i < count; ++i) units.back().traffic += traffic;
    };
    if (stage.has_embedding) units.emplace_back(), add(embedding, traffic_.embedding_traffic(stage), 1);
    const std::size_t before = units.size();
    for_each_layer_kind(stage, [&](std::size_t group, const LayerTimes& times, bool is_recomputed, i64 count) {
      if (units.size() == before + group) units.emplace_back();
      add(times.time(is_recomputed), is_recomputed ? times.recomputed_traffic : times.traffic, count);
    });
    if (stage.has_output_part()) units.emplace_back(), add(output, traffic_.output_traffic(stage), 1);
    return units;
  }

  /// Returns the maximum over pipeline ranks of the sum of f(stage) over their stages.
  template <class F>
  double max_over_ranks(const F& f) const {
    double max_seconds = 0;
    for (int rank = 0; rank < layout_.pp; ++rank) {
      double sum = 0;
      pipeline_.for_each_stage_of(rank, [&](const StageWork& stage) { sum += f(stage); });
      max_seconds = std::max(max_seconds, sum);
    }
    return max_seconds;
  }

  /// Returns the exposed gradient reduction without a pipeline: all but the first unit's overlaps with the last
  /// backward pass.
  double exposed_reduce_without_pipeline() const {
    const StageWork& all = pipeline_.stages().front();
    const double window = all.backward_seconds() * (1 - 1 / all.units());
    return std::max(traffic_.exposed_seconds(window, all.reduce_seconds),
                    input_.overlaps_data_parallel() ? all.reduce_seconds / all.units() : 0);
  }

  /// Returns the exposed gathering of weights before or during the first pass.
  double exposed_initial_gather() const {
    const auto links = [&](const StageWork& stage) { return traffic_.gather(stage.contents).links; };
    if (!input_.overlaps_data_parallel()) return max_over_ranks(links);
    double longest = 0;
    for (int rank = 0; rank < layout_.pp; ++rank) {
      const StageWork& first = pipeline_.first_stage(rank);
      const double gather = links(first);
      longest =
          std::max({longest, traffic_.exposed_seconds(first.passes.forward.total(), gather), gather / first.units()});
    }
    return longest;
  }

  double tied_embeddings() const {
    const int last_holder = final_norm_rank(layout_);
    if (last_holder == 0 || !input_.work.model.output_uses_embeddings()) return 0;
    return 2 * collectives_.message(input_.program.gradient_bytes * traffic_.weights().vocabulary(),
                                    last_holder * layout_.pipeline_stride());
  }

  double optimizer(int rank) const {
    double weights = 0;
    pipeline_.for_each_stage_of(rank,
                                [&](const StageWork& stage) { weights += traffic_.updated_weights(stage.contents); });
    return input_.hardware.slowest_device_factor(layout_.world_size()) * update_ * weights *
               (1 - layout_.effective_offloaded_fraction()) +
           offload_cost_.update_seconds(weights) + gradient_passes(rank) +
           collectives_.all_reduce(4, {.ranks = layout_.world_size(), .stride = 1});  // gradient norm
  }

  double gradient_passes(int rank) const {
    double gradients = 0;
    if (input_.program.gradient_passes > 0)
      pipeline_.for_each_stage_of(
          rank, [&](const StageWork& stage) { gradients += traffic_.held_gradients(stage.contents); });
    return input_.hardware.traffic_seconds(input_.program.gradient_passes * input_.program.gradient_bytes * gradients);
  }

  /// Returns the time to read tokens from data files, and to copy tokens and targets to the device.
  double data() const {
    const ModelConfig& m = input_.work.model;
    const HostRates& host = input_.hardware.host;
    const double tokens = real(pipeline_.microbatches() * layout_.micro_batch_size * m.seq_length);
    const double bytes_per_token = m.vocab_size > (i64{1} << 16) ? 4 : 2;
    return (host.nvme_bandwidth > 0 ? tokens * bytes_per_token / (1e9 * host.nvme_bandwidth) : 0) +
           (host.link_bandwidth > 0 ? tokens * 8 / (1e9 * host.link_bandwidth) : 0);
  }

  /// Returns the time of a message between stages that consists of `states` hidden states.
  double message_seconds(i64 states) const {
    const double bytes = real(states * residual_bytes(input_.work.model, input_.activations()));
    const bool scatters = input_.program.scatters_messages && !layout_.sequence_parallel;
    double message = collectives_.message(scatters ? bytes / real(layout_.tp) : bytes, layout_.pipeline_stride());
    if (scatters) message += collectives_.all_gather(bytes, layout_.tp_group());
    return message;
  }

  void run_pipeline(StepTime& step) const {
    const PipelineRun::Times without_messages = pipeline_.run(0), with_messages = pipeline_.run(1);
    const double waits = std::max(0.0, without_messages.seconds - step.work.total());
    step.core_wait = std::min(waits, (pipeline_.oversubscription() - 1) * step.work.computing());
    step.bubble = waits - step.core_wait;
    step.messages = with_messages.seconds - without_messages.seconds;
    step.data_parallel = with_messages.reduced - with_messages.seconds;
  }

  const PredictionInput& input_;
  const Layout& layout_;
  Collectives collectives_;
  WeightTraffic traffic_;
  OffloadCost offload_cost_;
  std::vector<LayerTimes> layers_;  // by kind of block
  double update_;
  PipelineRun pipeline_;  // last: constructed from the members above
};

}  // namespace

StepTime step_time(const PredictionInput& input) {
  return Step(input).time();
}

std::vector<StepTime> step_time_by_rank(const PredictionInput& input) {
  return Step(input).times_by_rank();
}

StepTimeline step_timeline(const PredictionInput& input, i64 max_microbatches) {
  return Step(input).timeline(max_microbatches);
}

double step_time_lower_bound(const PredictionInput& input) {
  return Step(input, false).lower_bound();
}

}  // namespace mcpp
