#include "megatron_cpp/monitor/prediction_check.h"

#include <utility>

namespace mcpp {

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
