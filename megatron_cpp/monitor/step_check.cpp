#include "megatron_cpp/monitor/step_check.h"

#include <utility>

namespace mcpp {

MeasuredRun measured_step(double seconds, const std::vector<RankStats>& ranks,
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

std::vector<std::string> StepCheck::add(i64 global_batch_size, const MeasuredRun& measured) {
  std::vector<std::string> told;
  if (global_batch_size != predicted_.global_batch_size) return told;
  std::vector<RunPart> parts = compare(predicted_.time, predicted_.memory_bytes, measured);
  for (std::vector<RunPart> more :
       {compare_stages(predicted_.stages, measured), compare_groups(predicted_.time, measured)})
    for (RunPart& part : more) parts.push_back(std::move(part));
  for (const RunPart& part : parts) {
    std::optional<Straggler> off;
    if (is_much_off(part, measured)) off = {.what = part.name, .text = much_off_text(part)};
    if (auto text = parts_[part.name].add(off)) told.push_back(std::move(*text));
  }
  return told;
}

}  // namespace mcpp
