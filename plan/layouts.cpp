#include "plan/layouts.h"

#include <algorithm>
#include <map>

#include "base/integer_math.h"
#include "base/strings.h"
#include "model/config/block_spec.h"
#include "model/flops.h"

namespace mcpp {
namespace {

/// Compute of the embedding, in layers. It is small, but breaks ties in favor of other stages.
constexpr double kEmbedding = 0.01;

/// Operations of the output, in layers.
struct OutputLoad {
  double output = 0;      ///< output matrix, also for multi-token prediction
  double prediction = 0;  ///< layers of multi-token prediction
};
OutputLoad output_in_layers(ModelConfig m) {
  const i64 predictions = m.mtp_num_layers;
  m.remove_mtp();
  const double output = 6 * real(m.hidden_size) * real(m.padded_vocab_size());
  return {.output = real(1 + predictions) * output / (flops_per_token(m) - output) * real(m.num_layers),
          .prediction = real(predictions)};
}

/// Assigns layers one by one to the stage with the least load; ties go to the last stage, which has the fewest
/// microbatches in flight. `last_load` is the load of the last stage without layers.
std::vector<i64> balance_layers(i64 num_layers, i64 stages, double last_load) {
  std::vector<double> load(static_cast<std::size_t>(stages), 0);
  load.front() += kEmbedding;
  load.back() += last_load;
  std::vector<i64> layers(load.size(), 0);
  for (i64 i = 0; i < num_layers; ++i) {
    const auto least_loaded = std::ranges::min_element(load.rbegin(), load.rend());
    const auto stage = static_cast<std::size_t>(load.rend() - least_loaded - 1);
    load[stage] += 1;
    ++layers[stage];
  }
  return layers;
}

std::string format_layers(i64 layers) {
  return layers == 0 ? "" : layers == 1 ? "t" : str("t*", layers);
}

/// Returns text like "Et*7|(t*8|)*14t*7L", with `end_text`, such as "mL", after the layers of the last element.
std::string format_layout(const std::vector<i64>& layers, const std::string& end_text) {
  if (layers.size() == 1) return str("E", format_layers(layers.front()), end_text);
  std::string text = str("E", format_layers(layers.front()), "|");
  for (std::size_t i = 1; i + 1 < layers.size();) {
    std::size_t end = i;
    while (end + 1 < layers.size() && layers[end] == layers[i]) ++end;
    text += end - i > 1 ? str("(", format_layers(layers[i]), "|)*", end - i) : str(format_layers(layers[i]), "|");
    i = end;
  }
  return str(text, format_layers(layers.back()), end_text);
}

}  // namespace

std::vector<std::string> stage_layouts(const ModelConfig& model, i64 stages) {
  if (model.num_layers + 2 < stages) return {};
  std::vector<std::string> list;
  const OutputLoad load = output_in_layers(model);
  const std::string predictions(static_cast<std::size_t>(model.mtp_num_layers), 'm');
  const std::vector<i64> layers = balance_layers(model.num_layers, stages, load.output + load.prediction);
  const bool is_even = model.num_layers % stages == 0;
  if (is_even) list.emplace_back();
  if (!is_even || std::ranges::count(layers, layers.front()) != stages)
    list.push_back(format_layout(layers, predictions + "L"));
  if (model.mtp_num_layers > 0 && model.untie_embeddings_and_output_weights && stages > 1)
    list.push_back(format_layout(balance_layers(model.num_layers, stages - 1, load.prediction), predictions + "|L"));
  return list;
}

namespace {

/// Tokens per sample and rank below which context parallelism is not worthwhile.
constexpr i64 kMinTokensPerRank = 2048;
/// Tokens per microbatch above which GEMMs get no faster; short samples are batched up to this.
constexpr i64 kMaxUsefulTokens = 32768;
constexpr i64 kMaxTensorParallel = 64, kMaxContextParallel = 64, kMaxExpertParallel = 256, kMaxChunks = 16;

std::vector<i64> divisors(i64 n, i64 max_count) {
  std::vector<i64> list;
  for (i64 d = 1; d <= std::min(n, max_count); ++d)
    if (n % d == 0) list.push_back(d);
  return list;
}

/// Returns the requested value, or all.
std::vector<i64> choices(i64 requested, std::vector<i64> all) {
  if (requested > 0) return {requested};
  return all;
}

/// Returns true if tp x cp ranks can share each layer of the model.
bool splits_layers(ModelSizes sizes, i64 tp, i64 cp) {
  sizes.num_layers = 0;  // of no interest
  return layout_conflicts(sizes, {.tp = tp, .cp = cp, .etp = sizes.num_experts > 0 ? 1 : 0}, kAnyWorld).empty();
}

class LayoutEnumerator {
 public:
  LayoutEnumerator(const Hardware& hardware, const Workload& work, const SearchLimits& limits,
                   const OffloadPlacement& placement, const std::function<void(const Layout&)>& f)
      : hardware_(hardware),
        nearest_tier_ranks_(hardware.links.ranks.front()),
        work_(work),
        sizes_(model_sizes(work.model)),
        limits_(limits),
        placement_(placement),
        f_(f) {}

  void run() {
    const i64 world = limits_.world_size;
    for (const i64 tp : choices(limits_.tp, model_parallel(world, kMaxTensorParallel))) {
      if (world % tp != 0 || !splits_layers(sizes_, tp, 1)) continue;
      for (const i64 cp : choices(limits_.cp, context_parallel(world / tp))) {
        if (world % (tp * cp) != 0 || !splits_layers(sizes_, tp, cp)) continue;
        for (const i64 pp : choices(limits_.pp, model_parallel(world / tp / cp, work_.model.num_layers)))
          if (world % (tp * cp * pp) == 0) for_each_micro_batch(tp, cp, pp);
      }
    }
  }

 private:
  /// Returns the numbers of ranks among which the model can be split.
  std::vector<i64> model_parallel(i64 ranks, i64 max_count) const {
    return divisors(ranks, work_.records_passes ? 1 : max_count);
  }

  std::vector<i64> context_parallel(i64 max_count) const {
    std::vector<i64> list{1};
    if (work_.records_passes) return list;
    const i64 parts = std::min(kMaxContextParallel, work_.model.seq_length / kMinTokensPerRank);
    for (i64 cp = 2; cp <= std::min(parts, max_count); ++cp)
      if (max_count % cp == 0 && work_.model.seq_length % sequence_step(cp, 1, false) == 0) list.push_back(cp);
    return list;
  }

  /// Returns micro batch sizes: 1 to 8, and for short samples also 12, 16, 24, 32 ..., which fill a device.
  std::vector<i64> micro_batches(i64 rank_samples) const {
    const i64 max_count = std::max(limits_.max_micro_batch_size, kMaxUsefulTokens / work_.model.seq_length);
    std::vector<i64> list;
    for (const i64 size : divisors(rank_samples, max_count)) {
      i64 odd_part = size;
      while (odd_part % 2 == 0) odd_part /= 2;
      if (size <= limits_.max_micro_batch_size || odd_part <= 3) list.push_back(size);
    }
    return list;
  }

  void for_each_micro_batch(i64 tp, i64 cp, i64 pp) {
    Layout layout = work_.base;
    layout.tp = tp, layout.cp = cp, layout.pp = pp, layout.dp = limits_.world_size / (tp * cp * pp);
    layout.tp_comm_overlap = work_.base.tp_comm_overlap && tp > 1;
    layout.states_tier = placement_.states, layout.params_tier = placement_.params;
    const i64 batch = work_.global_batch_size, dp = layout.dp;
    if (batch % dp != 0) return;
    for (const i64 b : choices(limits_.micro_batch_size, micro_batches(batch / dp))) {
      if (batch / dp % b != 0) continue;
      layout.micro_batch_size = b;
      for (const bool sequence_parallel : {false, true}) {
        if (sequence_parallel && tp == 1) continue;
        if (work_.model.seq_length % sequence_step(cp, tp, sequence_parallel) != 0) continue;
        layout.sequence_parallel = sequence_parallel;
        for (const auto& [type, heads] : context_parallel_modes(layout)) {
          layout.cp_comm_type = type;
          layout.cp_hierarchy.clear();
          if (type == CpCommType::A2aP2p) layout.cp_hierarchy = {heads, cp / heads};
          for_each_expert_layout(layout);
        }
      }
    }
  }

  /// Returns the communication types of context-parallel attention to consider, with the number of ranks that exchange
  /// heads.
  std::vector<std::pair<CpCommType, i64>> context_parallel_modes(const Layout& layout) const {
    using enum CpCommType;
    if (layout.cp == 1) return {{P2p, 1}};
    std::vector<std::pair<CpCommType, i64>> modes{{P2p, 1}, {AllGather, 1}};
    const i64 nearest_ranks = nearest_tier_ranks_ / layout.tp;
    const auto exchange = [&](i64 ranks) { return sizes_.can_exchange_heads(ranks, layout.tp); };
    if (exchange(layout.cp)) modes.emplace_back(A2a, layout.cp);
    if (exchange(layout.cp) && layout.cp <= nearest_ranks) return modes;
    // If not all ranks can exchange heads, or most of the exchange would cross nodes, considers the exchange among
    // ranks that share the nearest links.
    for (i64 ranks = std::min(nearest_ranks, layout.cp / 2); ranks > 1; --ranks) {
      if (layout.cp % ranks != 0 || !exchange(ranks)) continue;
      modes.emplace_back(A2aP2p, ranks);
      break;
    }
    return modes;
  }

  void for_each_expert_layout(Layout layout) {
    const ModelConfig& m = work_.model;
    if (m.moe.num_experts == 0) return for_each_schedule(layout);
    const bool splits_tokens = layout.sequence_parallel || layout.tp == 1;
    if (!splits_tokens && m.seq_length % (layout.tp * layout.cp) != 0) return;
    const i64 stage = layout.world_size() / layout.pp;
    for (const i64 etp : divisors(layout.tp, layout.tp)) {
      if (m.moe_ffn() % etp != 0) continue;
      for (const i64 ep : choices(limits_.ep, model_parallel(m.moe.num_experts, kMaxExpertParallel))) {
        if (m.moe.num_experts % ep != 0 || stage % (ep * etp) != 0) continue;
        layout.ep = ep, layout.etp = etp;
        for_each_dispatcher(layout);
      }
    }
  }

  /// If the ranks that exchange tokens have slower links to each other than within their nodes, tokens may be sent to
  /// each node only once.
  void for_each_dispatcher(Layout layout) {
    layout.dispatcher = TokenDispatcherType::AllToAll;
    layout.dispatch_node_ranks = 0;
    for_each_schedule(layout);
    if (layout.exchange_group().ranks <= nearest_tier_ranks_ || work_.model.moe.router_topk == 1) return;
    layout.dispatcher = TokenDispatcherType::Hierarchical;
    layout.dispatch_node_ranks = nearest_tier_ranks_;
    for_each_schedule(layout);
  }

  void for_each_schedule(Layout layout) {
    if (layout.pp == 1) return for_each_zero_stage(layout);
    for (const ScheduleRow& row : kSchedules) {
      if (row.kind == ScheduleKind::GPipe) continue;  // 1F1B takes the same time with less memory
      if (row.kind == ScheduleKind::DualPipeV && !supports_expert_overlap(hardware_)) continue;
      layout.schedule = row.kind;
      const i64 max_count = row.allows_more_chunks ? kMaxChunks : row.min_chunks;
      for (layout.chunks = row.min_chunks; layout.chunks <= max_count; ++layout.chunks) {
        if (!layout.schedule_conflicts(layout.microbatches(work_.global_batch_size)).empty()) continue;
        for (const std::string& stages : cached_stage_layouts(layout.pp * layout.chunks)) {
          // With more chunks than the minimum, uneven stages are considered only if the number of stages divides the
          // layers, with the embedding and the output counted as layers.
          const bool divides = (work_.model.num_layers + 2) % (layout.pp * layout.chunks) == 0;
          if (!stages.empty() && layout.chunks > row.min_chunks && !divides) continue;
          layout.stages = stages;
          for_each_zero_stage(layout);
        }
      }
    }
  }

  /// Returns stage_layouts(), which counts a model's operations, cached by number of stages.
  const std::vector<std::string>& cached_stage_layouts(i64 stages) {
    const auto [it, is_new] = stage_layouts_.try_emplace(stages);
    if (is_new) it->second = stage_layouts(work_.model, stages);
    return it->second;
  }

  void for_each_zero_stage(Layout layout) {
    for (layout.zero_stage = 0; layout.zero_stage <= 3; ++layout.zero_stage) {
      if (!is_worthwhile(layout) || !placement_.is_valid_for(layout) ||
          !work_.base.formats.is_compatible_with(layout.zero_stage))
        continue;
      const i64 shards = layout.cp * layout.dp;
      for (const i64 instances : instance_counts(layout, shards)) {
        layout.instances = instances;
        for_each_format(layout);
      }
    }
  }

  /// Returns true if the ZeRO stage is worth considering.
  bool is_worthwhile(const Layout& layout) const {
    const i64 zero = layout.zero_stage;
    // A single rank shards nothing, but its offloading and lossy formats work as with several.
    const bool is_alone = layout.cp * layout.dp == 1;
    if (zero >= 2 && work_.records_passes) return false;  // reduces or gathers within a pass
    const bool is_required = placement_.params != OffloadTier::Device || work_.base.formats != CommFormats{};
    if (zero > 0 && is_alone && !is_required) return false;
    if (zero >= 2 && row_of(layout.schedule).splits_backward) return false;
    // In a pipeline each microbatch would gather weights and reduce gradients again.
    return zero < 2 || layout.pp == 1 || work_.base.formats.has_bf16_grads();
  }

  /// Returns the numbers of shard groups: ZeRO 3 shards among all data-parallel ranks, or among ranks joined by the
  /// nearest links (HSDP).
  std::vector<i64> instance_counts(const Layout& layout, i64 shards) const {
    const i64 nearest_ranks = nearest_tier_ranks_ / layout.tp;
    if (layout.zero_stage < 3 || nearest_ranks < 2 || shards <= nearest_ranks || shards % nearest_ranks != 0)
      return {1};
    if (work_.model.moe.num_experts > 0 && layout.expert_dp() % (shards / nearest_ranks) != 0) return {1};
    return {1, shards / nearest_ranks};
  }

  void for_each_format(Layout layout) {
    for_each_node_size(layout);
    if (!limits_.allow_lossy_comm) return;
    for (const CommFormats& formats : lossy_comm_options(hardware_, work_, layout)) {
      layout.formats = formats;
      for_each_node_size(layout);
    }
  }

  /// Ranks that share ZeRO shards and are joined by the nearest links may keep a secondary weight shard, and reduce
  /// compressed gradients among themselves first.
  void for_each_node_size(Layout layout) {
    for_each_recompute(layout);
    const i64 nearest_ranks = nearest_tier_ranks_ / layout.tp, shards = layout.shard_group().ranks;
    const bool is_useful = layout.zero_stage == 3 || layout.formats.grad_reduce_format() != GradReduceFormat::Full;
    if (!is_useful || nearest_ranks < 2 || shards <= nearest_ranks || shards % nearest_ranks != 0) return;
    layout.node_ranks = nearest_ranks;
    for_each_recompute(layout);
  }

  void for_each_recompute(Layout layout) {
    using enum RecomputeGranularity;
    const bool has_experts = work_.model.moe.num_experts > 0;
    for (const Recompute& recompute :
         {Recompute{.granularity = None},
          Recompute{.granularity = Selective, .layernorm = true, .mlp_act = true, .moe_act = has_experts},
          Recompute{.granularity = Full}}) {
      layout.recompute = recompute;
      for_each_expert_overlap(layout);
    }
  }

  void for_each_expert_overlap(Layout layout) {
    layout.overlap_moe_expert_parallel_comm = false;
    // Without pairs of passes, ZB-V has less idle time with less memory.
    if (layout.schedule != ScheduleKind::DualPipeV) f_(layout);
    if (!supports_expert_overlap(hardware_) || !can_overlap_experts(layout)) return;
    layout.overlap_moe_expert_parallel_comm = true;
    f_(layout);
  }

  const Hardware& hardware_;
  const i64 nearest_tier_ranks_;
  const Workload& work_;
  const ModelSizes sizes_;
  const SearchLimits& limits_;
  const OffloadPlacement placement_;
  const std::function<void(const Layout&)>& f_;
  std::map<i64, std::vector<std::string>> stage_layouts_;
};

}  // namespace

bool supports_expert_overlap(const Hardware& hardware) {
  return hardware.host.cores > 0;
}

bool can_overlap_experts(const Layout& layout) {
  return layout.exchange_group().ranks > 1 && can_combine_passes(layout.schedule) && layout.zero_stage < 3 &&
         layout.activations_tier == OffloadTier::Device;
}

void for_each_layout(const Hardware& hardware, const Workload& work, const SearchLimits& limits,
                     const std::function<void(const Layout&)>& f, const OffloadPlacement& placement) {
  const std::function<void(const Layout&)> if_predictable = [&](const Layout& layout) {
    if (unpredictable_settings(limits.implementation, layout).empty()) f(layout);
  };
  LayoutEnumerator(hardware, work, limits, placement, if_predictable).run();
}

std::vector<CommFormats> lossy_comm_options(const Hardware& hardware, const Workload& work, const Layout& layout) {
  const bool leaves_first_tier = layout.shard_group().ranks * layout.tp > hardware.links.ranks.front();
  const CommFormats& configured = work.base.formats;
  std::vector<CommFormats> list;
  for (const bool weights : {false, true}) {
    for (const GradReduceFormat format : {GradReduceFormat::Full, GradReduceFormat::Bf16, GradReduceFormat::Int8}) {
      for (const bool has_bf16_sums : {false, true}) {
        CommFormats formats = configured;
        formats.quantized_weights |= weights && !formats.fp8_param_gather;
        if (configured.power_sgd_rank == 0)
          formats.set_grad_reduce_format(std::max(configured.grad_reduce_format(), format));
        if (has_bf16_sums && work.can_round_gradients) formats.main_grads_dtype = GradDType::Bf16;
        const bool has_quantized_comm = weights || format != GradReduceFormat::Full;
        if (formats == configured || !formats.is_compatible_with(layout.zero_stage) ||
            (has_quantized_comm && !leaves_first_tier))
          continue;
        if (formats.has_bf16_grads() && format == GradReduceFormat::Bf16)
          continue;  // gradients kept in bf16 are sent as bf16 anyway
        if (std::ranges::count(list, formats) == 0) list.push_back(formats);
      }
    }
  }
  return list;
}

bool has_layouts(const Hardware& hardware, const Workload& work, const SearchLimits& limits) {
  if (!limit_conflicts(hardware, work, limits).empty()) return false;
  bool is_found = false;
  for_each_layout(hardware, work, limits, [&](const Layout&) { is_found = true; });
  return is_found;
}

std::vector<std::string> limit_conflicts(const Hardware& hardware, const Workload& work, const SearchLimits& limits) {
  std::vector<std::string> conflicts;
  if (const i64 max_count = hardware.links.ranks.back(); limits.world_size > max_count)
    conflicts.push_back(str("world_size = ", limits.world_size, ", but the links of ", hardware.device.name,
                            " connect at most ", max_count, " ranks (links.ranks)"));
  const auto value_or_one = [](i64 value) { return std::max<i64>(value, 1); };
  const Layout layout{.tp = value_or_one(limits.tp),
                      .cp = value_or_one(limits.cp),
                      .pp = value_or_one(limits.pp),
                      .ep = value_or_one(limits.ep),
                      .etp = work.model.moe.num_experts > 0 ? 1 : 0};
  ModelSizes sizes = model_sizes(work.model);
  sizes.num_layers = 0;  // chunks and uneven stages may help, and so may other axes for the batch
  for (std::string& text : layout_conflicts(sizes, layout, limits.world_size)) conflicts.push_back(std::move(text));
  if (const i64 size = limits.micro_batch_size; size > 0 && work.global_batch_size % size != 0)
    conflicts.push_back(
        str("micro_batch_size = ", size, " does not divide global_batch_size = ", work.global_batch_size));
  if (work.records_passes)
    for (const auto& [name, ranks] : {std::pair("tensor_model_parallel_size", layout.tp),
                                      {"context_parallel_size", layout.cp},
                                      {"pipeline_model_parallel_size", layout.pp},
                                      {"expert_model_parallel_size", layout.ep}})
      if (ranks > 1)
        conflicts.push_back(
            str(name, " = ", ranks, ", but device.cuda_graph_impl supports only data parallelism; set it to 1"));
  if (layout.pp > work.model.num_layers)
    conflicts.push_back(
        str("pipeline_model_parallel_size = ", layout.pp, " is above num_layers = ", work.model.num_layers));
  return conflicts;
}

}  // namespace mcpp
