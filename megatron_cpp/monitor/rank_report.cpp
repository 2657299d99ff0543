#include "megatron_cpp/monitor/rank_report.h"

#include <algorithm>
#include <utility>

#include "base/json.h"
#include "base/machine.h"
#include "base/number_format.h"
#include "base/statistics.h"
#include "base/strings.h"
#include "comm/object_collectives.h"

namespace mcpp {
namespace {

bool is_shorter(const TimerStats::RankTime& a, const TimerStats::RankTime& b) {
  return a.ms < b.ms;
}

/// All groups of one name.
struct Group {
  std::vector<int> ranks;
  GroupSeconds min_wait;  ///< member with the least waiting time

  double seconds_per_byte() const { return min_wait.seconds / min_wait.bytes; }
};

std::vector<Group> groups_of(const std::vector<GroupSecondsByName>& ranks, const std::string& name) {
  std::map<int, Group> by_first;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto it = ranks[rank].find(name);
    if (it == ranks[rank].end() || it->second.bytes <= 0) continue;
    Group& group = by_first[it->second.first];
    if (group.ranks.empty() || it->second.seconds < group.min_wait.seconds) group.min_wait = it->second;
    group.ranks.push_back(static_cast<int>(rank));
  }
  std::vector<Group> groups;
  for (auto& [first, group] : by_first) groups.push_back(std::move(group));
  return groups;
}

/// Returns values[i] relative to the median of the other values; 0 if there are no other values.
double ratio_to_others(const std::vector<double>& values, std::size_t i) {
  std::vector<double> others = values;
  others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
  if (others.empty()) return 0;
  const double typical = median(std::move(others));
  return typical > 0 ? values[i] / typical : 0;
}

}  // namespace

RankStats mean_of(const std::vector<RankStats>& ranks) {
  RankStats mean;
  const auto count = static_cast<double>(ranks.size());
  for (const RankStats& rank : ranks) {
    mean.bubble += rank.bubble / count;
    mean.exposed_communication += rank.exposed_communication / count;
    mean.compute_ms += rank.compute_ms / count;
    mean.peak_memory_bytes = std::max(mean.peak_memory_bytes, rank.peak_memory_bytes);
  }
  return mean;
}

namespace {

std::string to_message(const Json& value) {
  const std::vector<u8> bytes = Json::to_cbor(value);
  return {bytes.begin(), bytes.end()};
}

std::vector<Json> from_messages(const std::vector<std::string>& messages) {
  std::vector<Json> ranks;
  for (const std::string& message : messages) ranks.push_back(Json::from_cbor(message));
  return ranks;
}

/// Returns the values of all ranks, in rank order, on rank 0, and an empty list on all others. Collective.
std::vector<Json> gather_on_rank0(const Json& local, Communicator& world) {
  return from_messages(gather_strings(to_message(local), world));
}

}  // namespace

std::vector<Json> gather_values(const Json& local, Communicator& world) {
  return from_messages(all_gather_strings(to_message(local), world));
}

std::vector<RankStats> gather_rank_stats(const RankStats& local, Communicator& world) {
  Json offloaded = Json::array();
  for (const OffloadedBytes& of_class : local.offloaded) offloaded.push_back({of_class.in_host, of_class.on_disk});
  const Json values{local.peak_memory_bytes, local.bubble,        local.exposed_communication,
                    local.compute_ms,        local.peak_by_class, offloaded};
  std::vector<RankStats> ranks;
  for (const Json& of_rank : gather_on_rank0(values, world)) {
    RankStats& rank = ranks.emplace_back(RankStats{.peak_memory_bytes = of_rank[0],
                                                   .bubble = of_rank[1],
                                                   .exposed_communication = of_rank[2],
                                                   .compute_ms = of_rank[3],
                                                   .peak_by_class = of_rank[4]});
    for (std::size_t c = 0; c < kMemoryClasses; ++c)
      rank.offloaded[c] = {.in_host = of_rank[5][c][0], .on_disk = of_rank[5][c][1]};
  }
  return ranks;
}

std::vector<MemoryColumn> memory_columns(const std::vector<RankStats>& ranks) {
  using MemoryLocation = MemoryColumn::MemoryLocation;
  std::vector<MemoryColumn> columns;
  for (std::size_t c = 0; c < kMemoryClasses; ++c) {
    const auto memory_class = static_cast<MemoryClass>(c);
    MemoryColumn on_device{memory_class, MemoryLocation::OnDevice, {}},
        in_host{memory_class, MemoryLocation::InHost, {}}, on_disk{memory_class, MemoryLocation::OnDisk, {}};
    for (const RankStats& rank : ranks) {
      on_device.bytes.push_back(rank.peak_by_class[c]);
      in_host.bytes.push_back(static_cast<double>(rank.offloaded[c].in_host));
      on_disk.bytes.push_back(static_cast<double>(rank.offloaded[c].on_disk));
    }
    const auto is_used = [](const MemoryColumn& column) { return std::ranges::max(column.bytes) > 0; };
    if (is_used(on_device) || is_used(in_host) || is_used(on_disk)) columns.push_back(on_device);
    if (is_used(in_host)) columns.push_back(in_host);
    if (is_used(on_disk)) columns.push_back(on_disk);
  }
  return columns;
}

RankTimings rank_timings(const TrainingState& state, const ParallelState& parallel) {
  RankTimings spent{.clock = steady_seconds(),
                    .pipeline = state.pipeline_waiting_seconds(),
                    .communication = state.agreement_seconds()};
  for (const auto& [name, meter] : parallel.meters) {
    if (!ParallelState::is_pipeline(name)) spent.communication += meter->exposed_seconds;
  }
  return spent;
}

double TimerStats::min() const {
  return std::ranges::min_element(ranks, is_shorter)->ms;
}

double TimerStats::max() const {
  return std::ranges::max_element(ranks, is_shorter)->ms;
}

std::vector<TimerStats> gather_timers(const std::map<std::string, double>& seconds, double iterations,
                                      Communicator& world) {
  const std::vector<Json> ranks = gather_on_rank0(seconds, world);
  std::map<std::string, TimerStats> by_name;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const auto& [name, value] : ranks[rank].items()) {
      by_name[name].name = name;
      by_name[name].ranks.push_back({.rank = static_cast<int>(rank), .ms = 1e3 * value.get<double>() / iterations});
    }
  }
  std::vector<TimerStats> timers;
  for (auto& [name, timer] : by_name) timers.push_back(std::move(timer));
  return timers;
}

GroupSecondsByName group_seconds(const ParallelState& parallel) {
  GroupSecondsByName groups;
  for (const auto& [name, meter] : parallel.meters) {
    if (ParallelState::is_pipeline(name) || meter->ranks.size() < 2) continue;
    groups[name] = {.first = meter->ranks.front(),
                    .seconds = meter->exposed_seconds,
                    .bytes = static_cast<double>(meter->total_bytes())};
  }
  return groups;
}

GroupSecondsByName operator-(const GroupSecondsByName& a, const GroupSecondsByName& b) {
  GroupSecondsByName difference = a;
  for (auto& [name, group] : difference) {
    const auto before = b.find(name);
    if (before == b.end()) continue;
    group.seconds -= before->second.seconds;
    group.bytes -= before->second.bytes;
  }
  return difference;
}

std::vector<GroupSecondsByName> gather_group_seconds(const GroupSecondsByName& local, Communicator& world) {
  Json values = Json::object();
  for (const auto& [name, group] : local) values[name] = {group.first, group.seconds, group.bytes};
  std::vector<GroupSecondsByName> ranks;
  for (const Json& of_rank : gather_on_rank0(values, world)) {
    GroupSecondsByName& groups = ranks.emplace_back();
    for (const auto& [name, group] : of_rank.items())
      groups[name] = {.first = group[0], .seconds = group[1], .bytes = group[2]};
  }
  return ranks;
}

std::optional<Straggler> find_slow_rank(const std::vector<RankStats>& ranks, const Topology& topology, double factor) {
  std::optional<Straggler> slowest;
  double max_ratio = factor;
  for (int stage = 0; stage < topology.pp(); ++stage) {
    std::vector<int> members;
    std::vector<double> times;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      if (topology.dense().coordinates(static_cast<int>(rank)).pp != stage) continue;
      members.push_back(static_cast<int>(rank));
      times.push_back(ranks[rank].compute_ms);
    }
    for (std::size_t i = 0; i < members.size(); ++i) {
      const double times_as_long = ratio_to_others(times, i);
      if (times_as_long < max_ratio) continue;
      max_ratio = times_as_long;
      slowest = {.what = str("rank ", members[i]),
                 .text = str("rank ", members[i], " computes ", fixed(times[i], 1), " ms in an iteration, ",
                             fixed(times_as_long, 1), " times as long as ranks with the same work, which wait for it"),
                 .rank = members[i]};
    }
  }
  return slowest;
}

std::optional<Straggler> find_slow_group(const std::vector<GroupSecondsByName>& ranks, double window_seconds,
                                         double factor) {
  constexpr double kMinFraction = 0.01;
  std::optional<Straggler> slowest;
  double max_ratio = factor;
  for (const auto& [name, unused] : ranks.front()) {
    const std::vector<Group> groups = groups_of(ranks, name);
    std::vector<double> rates;
    for (const Group& group : groups) rates.push_back(group.seconds_per_byte());
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const Group& group = groups[i];
      const double times_as_long = ratio_to_others(rates, i);
      if (times_as_long < max_ratio || group.min_wait.seconds < kMinFraction * window_seconds) continue;
      max_ratio = times_as_long;
      const std::string what = str("the group ", GroupName{.name = name, .ranks = group.ranks}.to_string());
      slowest = {.what = what,
                 .text = str(what, " takes ", fixed(times_as_long, 1), " times as long as similar groups to send ",
                             human_bytes(group.min_wait.bytes), " from a rank; check the network between them")};
    }
  }
  return slowest;
}

std::optional<std::string> StragglerReporter::add(const std::optional<Straggler>& straggler) {
  const std::string what = straggler ? straggler->what : "";
  const bool is_repeated = !what.empty() && what == last_;
  if (!is_repeated) is_reported_ = false;
  last_ = what;
  if (!is_repeated || std::exchange(is_reported_, true)) return std::nullopt;
  return straggler->text;
}

MeasuredRun make_measured_run(double seconds, const std::vector<RankStats>& ranks,
                              const std::vector<GroupSecondsByName>& groups, i64 iterations) {
  const RankStats mean = mean_of(ranks);
  MeasuredRun run{.seconds = seconds,
                  .bubble = mean.bubble,
                  .exposed_communication = mean.exposed_communication,
                  .peak_memory_bytes = mean.peak_memory_bytes};
  for (const RankStats& rank : ranks) run.computing_by_rank.push_back(1e-3 * rank.compute_ms);
  const double shares = static_cast<double>(groups.size()) * static_cast<double>(iterations);
  for (const GroupSecondsByName& of_rank : groups)
    for (const auto& [name, group] : of_rank) run.groups[name] += group.seconds / shares;
  return run;
}

std::vector<std::string> PredictionCheck::add(i64 global_batch_size, const MeasuredRun& measured) {
  std::vector<std::string> messages;
  if (global_batch_size != predicted_.global_batch_size) return messages;
  std::vector<RunPart> parts = compare(predicted_.time, predicted_.memory_bytes, measured);
  for (std::vector<RunPart> more :
       {compare_stages(predicted_.stages, measured), compare_groups(predicted_.time, measured)})
    for (RunPart& part : more) parts.push_back(std::move(part));
  for (const RunPart& part : parts) {
    std::optional<Straggler> deviation;
    if (exceeds_tolerance(part, measured)) deviation = {.what = part.name, .text = tolerance_warning(part)};
    if (auto text = parts_[part.name].add(deviation)) messages.push_back(std::move(*text));
  }
  return messages;
}

}  // namespace mcpp
