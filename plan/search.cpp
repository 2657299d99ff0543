#include "plan/search.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>

#include "base/check.h"
#include "base/number_format.h"
#include "base/strings.h"
#include "parallel/stages.h"
#include "plan/layout_memory.h"
#include "plan/layouts.h"

namespace mcpp {
namespace {

std::string_view recompute_text(const Recompute& recompute) {
  using enum RecomputeGranularity;
  if (recompute.granularity == Full && recompute.method == Recompute::Method::Block) return "some layers";
  return enum_name(recompute.granularity);
}

}  // namespace

std::string LayoutTag::text() const {
  return value.empty() ? str(name, " ", number) : str(name, " ", value);
}

std::vector<LayoutTag> layout_tags(const Layout& l, bool has_experts) {
  std::vector<LayoutTag> tags;
  tags.reserve(16);
  const auto add_number = [&](std::string_view name, i64 number) { tags.push_back({name, "", number}); };
  const auto add_value = [&](std::string_view name, std::string_view value) { tags.push_back({name, value}); };
  add_number("tp", l.tp), add_number("cp", l.cp), add_number("pp", l.pp), add_number("ZeRO", l.zero_stage);
  add_number("micro batch", l.micro_batch_size);
  if (l.cp > 1) add_value("cp", enum_name(l.cp_comm_type));
  if (has_experts) add_number("ep", l.ep);
  if (has_experts && l.exchange_group().ranks > 1)
    add_value("dispatch", enum_name(l.dispatcher)),
        add_value("exchanges", l.overlap_moe_expert_parallel_comm ? "overlapped" : "exposed");
  if (l.pp > 1) add_value("schedule", enum_name(l.schedule)), add_value("stages", l.stages.empty() ? "even" : "uneven");
  add_value("recompute", recompute_text(l.recompute));
  add_value("activations", enum_name(l.activations_tier));
  if (l.has_secondary_shard()) add_value("weights", "twice");
  if (l.formats.quantized_weights) add_value("weights", "packed");
  if (l.formats.grad_reduce_format() == GradReduceFormat::Int8) add_value("gradients", "packed");
  if (l.formats.grad_reduce_format() == GradReduceFormat::Bf16) add_value("gradients", "sent in bf16");
  if (l.formats.grad_reduce_format() != GradReduceFormat::Full && l.node_ranks > 1) add_value("gradients", "by nodes");
  if (l.formats.has_bf16_grads()) add_value("gradients", "bf16");
  return tags;
}

int complexity(const Layout& l) {
  using enum RecomputeGranularity;
  const bool has_tiers[]{l.activations_tier != OffloadTier::Device, l.states_tier != OffloadTier::Device,
                         l.params_tier != OffloadTier::Device};
  const bool mechanisms[]{l.tp > 1,
                          l.cp > 1,
                          l.pp > 1,
                          l.ep > 1,
                          l.ep > 1 && l.tp > 1 && l.expert_tp() != l.tp,
                          l.tp_comm_overlap,
                          l.dispatcher != TokenDispatcherType::AllToAll,
                          l.overlap_moe_expert_parallel_comm,
                          l.cp > 1 && l.cp_comm_type == CpCommType::A2aP2p,
                          l.pp > 1 && l.schedule != ScheduleKind::OneFOneB,
                          !l.stages.empty(),
                          l.zero_stage >= 2,
                          l.instances > 1,
                          l.has_secondary_shard(),
                          l.recompute.granularity != None,
                          l.recompute.method == Recompute::Method::Block};
  return static_cast<int>(std::ranges::count(mechanisms, true) + 2 * std::ranges::count(has_tiers, true));
}

bool NaturalLess::operator()(const std::string& a, const std::string& b) const {
  const auto name = [](const std::string& kind) { return std::string_view(kind).substr(0, kind.rfind(' ')); };
  if (name(a) != name(b)) return name(a) < name(b);
  return a.size() != b.size() ? a.size() < b.size() : a < b;
}

std::optional<Layout> minimize_recompute(LayoutMemory& memory, Layout layout, const ModelConfig& model,
                                         double device_bytes) {
  if (layout.recompute.granularity != Recompute::Granularity::Full) return std::nullopt;
  if (layout.uses(OffloadTier::Host) || layout.uses(OffloadTier::File)) return std::nullopt;
  const auto fits = [&](i64 layers) {
    layout.recompute.method = Recompute::Method::Block;
    layout.recompute.num_layers = layers;
    return memory.peak(layout).total() <= device_bytes;
  };
  i64 peak = 0;
  for (const StageContents& stage : split_stages(layout, model.num_layers)) peak = std::max(peak, stage.num_layers());
  i64 too_few = 0, enough = peak;
  if (fits(too_few)) return std::nullopt;
  while (enough - too_few > 1) {
    const i64 middle = (too_few + enough) / 2;
    (fits(middle) ? enough : too_few) = middle;
  }
  if (enough == peak) return std::nullopt;
  layout.recompute.num_layers = enough;
  return layout;
}

std::string slowdown_reason(const Hardware& hardware, const Candidate& slow, const Candidate& fast) {
  const StepTime &a = slow.time, &b = fast.time;
  const Collectives collectives(hardware);
  const RankGroup tp = slow.layout.tp_group();
  const bool exceeds = tp.ranks > hardware.links.ranks.front();
  const bool recomputes = slow.layout.recompute.granularity == Recompute::Granularity::Full;
  const std::pair<double, std::string> parts[]{
      {a.work.tensor_parallel - b.work.tensor_parallel,
       exceeds ? str("tensor parallelism exceeds the ", hardware.links.tier.front(), " domain of ",
                     hardware.links.ranks.front(), " ranks and uses ", collectives.outermost_tier(tp))
               : "tensor parallelism communicates more"},
      {a.work.context_parallel - b.work.context_parallel, "context-parallel exchange takes longer"},
      {a.work.expert_parallel - b.work.expert_parallel,
       slow.layout.exchange_group().ranks > hardware.links.ranks.front()
           ? str("tokens leave the ", hardware.links.tier.front(), " domain of ", hardware.links.ranks.front(),
                 " for their experts")
           : "token dispatch takes longer"},
      {a.work.data_parallel - b.work.data_parallel, "each microbatch gathers weights or sums gradients"},
      {a.data_parallel - b.data_parallel, "less communication of gradients and weights overlaps"},
      {a.bubble - b.bubble, "the pipeline waits longer"},
      {a.messages - b.messages, "more messages between stages"},
      {a.optimizer - b.optimizer, "the update is shared by fewer ranks"},
      {a.work.offloaded - b.work.offloaded, "offloaded data arrives later than it is needed"},
      {a.work.elementwise - b.work.elementwise, "elementwise operations take longer"},
      {a.work.attention - b.work.attention,
       recomputes ? "more attention is recomputed" : "attention has fewer heads or keys at a time"},
      {a.work.gemms - b.work.gemms,
       recomputes ? "more GEMMs are recomputed" : "GEMMs are smaller, or unevenly distributed"}};
  const auto* peak = std::ranges::max_element(parts, {}, [](const auto& part) { return part.first; });
  const double percent = 100 * (a.seconds / b.seconds - 1);
  return str(fixed(percent, 1), " % slower: ", peak->second);
}

namespace {

/// Minimum relative gain at which a lossy format is reported.
constexpr double kMinReportedGain = 0.01;
/// Relative time up to which a simpler layout is preferred to the fastest.
constexpr double kTie = 1.02;

/// Cost in lexicographic order: activations are offloaded, bytes of memory, seconds. When minimizing time the first two
/// are equal for all.
using Cost = std::tuple<bool, double, double>;

struct Entry {
  Layout layout;
  MemoryEstimate memory;
  double lower_bound = 0;  ///< lower bound of the step time in seconds
  std::optional<StepTime> time;
};

/// Returns the entries by the text of their tag, in output order.
template <class T>
std::map<std::string, T, NaturalLess> by_text(const std::map<LayoutTag, T>& tags) {
  std::map<std::string, T, NaturalLess> sorted;
  for (const auto& [kind, what] : tags) sorted.emplace(kind.text(), what);
  return sorted;
}

class Search {
 public:
  Search(const Hardware& hardware, const KernelTraits& program, const Workload& work, const SearchLimits& limits,
         const OffloadPlacement& placement)
      : hardware_(hardware), program_(program), work_(work), limits_(limits), placement_(placement), memory_(work) {}

  SearchResult run() {
    for_each_layout(
        hardware_, work_, limits_, [&](const Layout& layout) { consider(layout); }, placement_);
    std::vector<std::size_t> order(fitting_.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::stable_sort(order, {}, [&](std::size_t i) { return lower_bound_cost(fitting_[i]); });
    for (const std::size_t i : order) {
      if (best_.size() >= keep() && lower_bound_cost(fitting_[i]) >= cost_of(best_.back())) break;
      add_best(i);
    }
    for (const std::size_t i : best_) result_.best.push_back(candidate(fitting_[i]));
    for (std::size_t i = 1; i < result_.best.size(); ++i)
      result_.best[i].reason = disadvantage(result_.best[i], result_.best.front());
    if (!best_.empty()) report_alternatives(order);
    if (!best_.empty() && !is_for_memory()) find_simpler(order);
    return std::move(result_);
  }

 private:
  std::size_t keep() const { return static_cast<std::size_t>(limits_.keep); }
  PredictionInput input(const Layout& layout) { return {hardware_, program_, work_, layout, memory_.measurements()}; }
  Candidate candidate(Entry& entry) { return {entry.layout, simulated(entry), entry.memory}; }
  bool is_for_memory() const { return limits_.objective == Objective::Memory; }
  Cost cost(const Entry& entry, double seconds) const {
    if (!is_for_memory()) return {false, 0, seconds};
    return {entry.layout.activations_tier != OffloadTier::Device, entry.memory.total(), seconds};
  }
  /// Lower bound of cost_of().
  Cost lower_bound_cost(const Entry& entry) const { return cost(entry, entry.lower_bound); }
  Cost cost_of(std::size_t i) { return cost(fitting_[i], simulated(fitting_[i]).seconds); }

  std::vector<LayoutTag> tags(const Layout& layout) const {
    return layout_tags(layout, work_.model.moe.num_experts > 0);
  }

  const StepTime& simulated(Entry& entry) {
    if (!entry.time) {
      entry.time = step_time(input(entry.layout));
      ++result_.simulated;
    }
    return *entry.time;
  }

  void consider(const Layout& possible) {
    ++result_.possible;
    const OnDeviceStates states = is_for_memory() ? OnDeviceStates::None : OnDeviceStates::AllThatFit;
    const auto [layout, memory, fits] = fit_with_offload(memory_, hardware_, possible, limits_.memory_bytes, states);
    const bool is_offloaded = layout.activations_tier != OffloadTier::Device;
    if (layout.overlap_moe_expert_parallel_comm && is_offloaded) return;
    // for_each_layout() checked the settings except offloaded activations.
    if (is_offloaded && !unpredictable_settings(limits_.implementation, layout).empty()) return;
    if (result_.possible == 1 || memory.total() < result_.smallest.memory.total())
      result_.smallest = {.layout = layout, .time = {}, .memory = memory};
    if (!fits) {
      for (const LayoutTag& kind : tags(layout)) {
        const auto [it, is_new] = smallest_by_tag_.try_emplace(kind);
        if (is_new || memory.total() < it->second.memory.total()) it->second = {layout, {}, memory};
      }
      return;
    }
    add_fitting(layout, memory);
    if (const auto fewer = minimize_recompute(memory_, layout, work_.model, limits_.memory_bytes)) {
      ++result_.possible;
      add_fitting(*fewer, memory_.peak(*fewer));
    }
  }

  void add_fitting(const Layout& layout, const MemoryEstimate& memory) {
    ++result_.fitting;
    fitting_.push_back(
        {.layout = layout, .memory = memory, .lower_bound = step_time_lower_bound(input(layout)), .time = {}});
  }

  void add_best(std::size_t i) {
    const Cost new_cost = cost_of(i);
    // Equal layouts, such as two halves of a sample on two ranks instead of one sample on each: the simpler one came
    // first.
    const auto is_as_good = [&](std::size_t other) {
      const auto [is_offloaded, memory, seconds] = cost_of(other);
      return is_offloaded == std::get<0>(new_cost) && memory == std::get<1>(new_cost) &&
             std::abs(seconds / std::get<2>(new_cost) - 1) < 1e-9;
    };
    if (std::ranges::any_of(best_, is_as_good)) return;
    const auto position = std::ranges::find_if(best_, [&](std::size_t other) { return new_cost < cost_of(other); });
    best_.insert(position, i);
    if (best_.size() > keep()) best_.pop_back();
  }

  void find_simpler(const std::vector<std::size_t>& order) {
    const Candidate& fastest = result_.best.front();
    const double max_seconds = kTie * fastest.time.seconds;
    int lowest = complexity(fastest.layout);
    for (const std::size_t i : order) {
      Entry& entry = fitting_[i];
      if (entry.lower_bound > max_seconds) break;
      const int parts = complexity(entry.layout);
      if (parts >= lowest || simulated(entry).seconds > max_seconds) continue;
      lowest = parts;
      result_.simpler = candidate(entry);
    }
  }

  void report_alternatives(const std::vector<std::size_t>& order) {
    const Candidate& best = result_.best.front();
    const std::vector<LayoutTag> best_tags = tags(best.layout);
    std::map<LayoutTag, std::size_t> promising;
    for (const std::size_t i : order)
      for (const LayoutTag& kind : tags(fitting_[i].layout)) promising.try_emplace(kind, i);
    // The layout with the lowest bound is not always the best one: prefer a better one that was simulated.
    for (const std::size_t i : order) {
      if (!fitting_[i].time) continue;
      for (const LayoutTag& kind : tags(fitting_[i].layout))
        if (std::size_t& known = promising.at(kind); cost_of(i) < cost_of(known)) known = i;
    }
    for (const auto& [kind, found] : promising) smallest_by_tag_.erase(kind);
    for (const LayoutTag& kind : best_tags) promising.erase(kind);
    for (const auto& [kind, i] : by_text(promising)) {
      const Candidate other = candidate(fitting_[i]);
      result_.alternatives.push_back({.kind = kind, .candidate = other, .reason = disadvantage(other, best)});
    }
    for (const auto& [kind, smallest] : by_text(smallest_by_tag_))
      result_.alternatives.push_back(
          {.kind = kind,
           .candidate = smallest,
           .fits = false,
           .reason = str("needs at least ", human_bytes(smallest.memory.total()), " of memory per rank, more than ",
                         human_bytes(limits_.memory_bytes))});
    if (!limits_.allow_lossy_comm && !is_for_memory()) report_lossy_gain(best);
    if (!is_for_memory()) report_expert_overlap(best);
  }

  /// Reports the gain of the best layout from overlapped exchanges if they are not part of the search because this
  /// hardware does not run them.
  void report_expert_overlap(const Candidate& best) {
    Entry entry{.layout = best.layout, .memory = {}, .time = {}};
    if (work_.model.moe.num_experts == 0 || supports_expert_overlap(hardware_) || !can_overlap_experts(entry.layout))
      return;
    entry.layout.overlap_moe_expert_parallel_comm = true;
    if (!unpredictable_settings(limits_.implementation, entry.layout).empty()) return;
    entry.memory = memory_.peak(entry.layout);
    const double gain = best.time.seconds / simulated(entry).seconds - 1;
    if (gain <= kMinReportedGain) return;
    const double added = entry.memory.total() - best.memory.total();
    result_.alternatives.push_back(
        {.kind = "exchanges overlapped",
         .candidate = candidate(entry),
         .reason = str(fixed(100 * gain, 1), " % faster, with ", human_bytes(std::max(0.0, added)),
                       " more memory, but overlap_moe_expert_parallel_comm supports CPUs only")});
  }

  /// Reports the greatest gain of the best layout from a lossy format.
  void report_lossy_gain(const Candidate& best) {
    double peak = kMinReportedGain;
    std::optional<Candidate> fastest;
    for (const CommFormats& formats : lossy_comm_options(hardware_, work_, best.layout)) {
      Entry entry{.layout = best.layout, .memory = {}, .time = {}};
      entry.layout.formats = formats;
      entry.memory = memory_.peak(entry.layout);
      const double gain = best.time.seconds / simulated(entry).seconds - 1;
      if (gain <= peak || entry.memory.total() > limits_.memory_bytes) continue;
      peak = gain;
      fastest = candidate(entry);
    }
    if (fastest)
      result_.alternatives.push_back(
          {.kind = "lossy formats",
           .candidate = *fastest,
           .reason =
               str(fixed(100 * peak, 1), " % faster, as less is sent; --allow_lossy_comm considers such formats")});
  }

  std::string disadvantage(const Candidate& other, const Candidate& best) const {
    return is_for_memory() ? memory_reason(other, best) : slowdown_reason(hardware_, other, best);
  }

  /// Names the class of memory that grows most.
  static std::string memory_reason(const Candidate& other, const Candidate& best) {
    const MemoryEstimate &a = other.memory, &b = best.memory;
    if (other.layout.activations_tier != best.layout.activations_tier) return "fits only with offloaded activations";
    const std::pair<double, const char*> classes[]{{a.params - b.params, "weights"},
                                                   {a.grads - b.grads, "gradients"},
                                                   {a.optimizer_state - b.optimizer_state, "optimizer state"},
                                                   {a.activations - b.activations, "activations"}};
    const auto* peak = std::ranges::max_element(classes, {}, [](const auto& item) { return item.first; });
    const double times = other.time.seconds / best.time.seconds;
    return str(fixed(100 * (a.total() / b.total() - 1), 1), " % more memory, most of it ", peak->second, ", in ",
               fixed(times, 2), " times the time");
  }

  const Hardware& hardware_;
  const KernelTraits& program_;
  const Workload& work_;
  const SearchLimits& limits_;
  const OffloadPlacement placement_;
  LayoutMemory memory_;
  SearchResult result_;
  std::vector<Entry> fitting_;
  std::vector<std::size_t> best_;                   // indices into fitting_, best first
  std::map<LayoutTag, Candidate> smallest_by_tag_;  // the smallest layout of each tag
};

}  // namespace

SearchResult search_layouts(const Hardware& hardware, const KernelTraits& program, const Workload& work,
                            const SearchLimits& limits) {
  const std::vector<std::string> conflicts = limit_conflicts(hardware, work, limits);
  check_input(conflicts.empty(), "no layout can be found:\n  ", join(conflicts, "\n  "));
  SearchResult result;
  for (const OffloadPlacement& placement : offload_placements(hardware.host)) {
    SearchResult candidate = Search(hardware, program, work, limits, placement).run();
    if (!candidate.best.empty()) return candidate;
    const bool needs_less_memory =
        candidate.possible > 0 && candidate.smallest.memory.total() < result.smallest.memory.total();
    if (result.possible == 0 || needs_less_memory) result = std::move(candidate);
  }
  check_input(result.possible > 0, "no layout of ", limits.world_size, " ranks divides ", work.model.num_layers,
              " layers and a global_batch_size of ", work.global_batch_size,
              "; choose a batch size that more of the ranks divide");
  return result;
}

bool any_layout_fits(const Hardware& hardware, const Workload& work, const SearchLimits& limits) {
  LayoutMemory memory(work);
  bool fits = false;
  for (const OffloadPlacement& placement : offload_placements(hardware.host)) {
    if (fits) break;
    for_each_layout(
        hardware, work, limits,
        [&](const Layout& layout) {
          fits = fits || fit_with_offload(memory, hardware, layout, limits.memory_bytes).fits;
        },
        placement);
  }
  return fits;
}

i64 smallest_world_size(const Hardware& hardware, const Workload& work, SearchLimits limits) {
  for (; limits.world_size <= hardware.links.ranks.back(); limits.world_size *= 2)
    if (any_layout_fits(hardware, work, limits)) return limits.world_size;
  return 0;
}

}  // namespace mcpp
