#include "megatron_cpp/train/rank_reporter.h"

#include <utility>

namespace mcpp {

RankReporter::RankReporter(StoredRef<LoggingConfig> config, Session& session, StoredRef<Log> log,
                           const std::optional<PredictedStep>& predicted)
    : config_(config), session_(session), log_(log) {
  if (predicted) check_.emplace(*predicted);
}

RankStats RankReporter::local_stats(const LogWindow& line, const OffloadedBytesByClass& offloaded) const {
  const RankTimings window = line.seconds();
  const MemoryTable& memory = session_.device->memory();
  RankStats stats{.peak_memory_bytes = static_cast<double>(memory.total.peak),
                  .bubble = window.pipeline / window.clock,
                  .exposed_communication = window.communication / window.clock,
                  .compute_ms = 1e3 * window.compute() / static_cast<double>(line.iterations()),
                  .offloaded = offloaded};
  for (std::size_t c = 0; c < kMemoryClasses; ++c)
    stats.peak_by_class[c] = static_cast<double>(memory.by_class[c].peak);
  return stats;
}

std::vector<RankStats> RankReporter::report(i64 iteration, const LogWindow& window,
                                            const OffloadedBytesByClass& offloaded, MetricsWriter& metrics) {
  Communicator& world = session_.parallel.world;
  std::vector<RankStats> ranks{local_stats(window, offloaded)};
  if (world.size() > 1) ranks = gather_rank_stats(ranks.front(), world, *session_.device);
  // With many ranks the table is not written at every line, so that tables take little more of the file than lines do.
  constexpr i64 kRanksPerLine = 16;
  if (tables_++ % (1 + (world.size() - 1) / kRanksPerLine) == 0)
    metrics.write(RankTable{.iteration = iteration, .ranks = ranks});
  std::vector<GroupSecondsByName> groups;
  if (world.size() > 1 && (config_.straggler_factor > 0 || check_)) groups = gather_new_group_seconds();
  const bool is_cold = !std::exchange(is_warm_, true);  // the first interval includes the start-up
  if (check_ && !is_cold)
    for (const std::string& text :
         check_->add(window.last().global_batch_size,
                     make_measured_run(1e-3 * window.means().elapsed_ms, ranks, groups, window.iterations())))
      log_.warn(text);
  if (iteration > 1 && !std::exchange(has_logged_table_, true)) {
    if (world.size() > 1) log_.info(rank_table(ranks, session_.parallel.topology));
    log_.info(memory_table(ranks));
  }
  if (world.size() == 1) return {};
  if (config_.straggler_factor > 0) warn_of_stragglers(ranks, groups, window.seconds().clock);
  return ranks;
}

std::vector<GroupSecondsByName> RankReporter::gather_new_group_seconds() {
  const GroupSecondsByName now = group_seconds(session_.parallel);
  return gather_group_seconds(now - std::exchange(group_seconds_, now), session_.parallel.world);
}

void RankReporter::warn_of_stragglers(const std::vector<RankStats>& ranks,
                                      const std::vector<GroupSecondsByName>& groups, double seconds) {
  const double factor = config_.straggler_factor;
  for (const auto& text : {slow_ranks_.add(find_slow_rank(ranks, session_.parallel.topology, factor)),
                           slow_groups_.add(find_slow_group(groups, seconds, factor))})
    if (text) log_.warn(*text);
}

}  // namespace mcpp
