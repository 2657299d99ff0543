#include "plan/scaling/training_cost.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/integer_math.h"
#include "base/number_format.h"
#include "base/strings.h"
#include "model/flops.h"

namespace mcpp {

std::vector<Speedup> upgrade_gains(const PredictionInput& input) {
  const double now = step_time(input).seconds;
  std::vector<Speedup> gains;
  const auto with = [&](std::string change, const std::function<void(Hardware&)>& improve) {
    Hardware better = input.hardware;
    improve(better);
    gains.push_back(
        {std::move(change), now / step_time({better, input.program, input.work, input.layout}).seconds - 1});
  };
  with("twice the GEMMs per second", [](Hardware& h) {
    for (const auto& [peak, attained] : gemm_rates(h.device)) *peak *= 2, *attained *= 2;
  });
  with("twice the attention per second", [](Hardware& h) { h.device.attention_attained *= 2; });
  with("twice the memory bandwidth", [](Hardware& h) { h.device.memory_attained *= 2; });
  with("devices of the same speed", [](Hardware& h) { h.device.speed_spread = 0; });
  for (std::size_t tier = 0; tier < input.hardware.links.tier.size(); ++tier) {
    const bool is_used = tier == 0 || input.layout.world_size() > input.hardware.links.ranks[tier - 1];
    if (is_used)
      with("twice the bandwidth of " + input.hardware.links.tier[tier],
           [tier](Hardware& h) { h.links.bandwidth[tier] *= 2; });
  }
  if (input.layout.uses(OffloadTier::Host) || input.layout.uses(OffloadTier::File))
    with("twice the bandwidth between device and host", [](Hardware& h) { h.host.link_bandwidth *= 2; });
  if (input.layout.uses(OffloadTier::File))
    with("twice the bandwidth of local disks", [](Hardware& h) { h.host.nvme_bandwidth *= 2; });
  std::ranges::stable_sort(gains, std::greater(), &Speedup::fraction);
  return gains;
}

namespace {

/// Fraction of the time below which a run counts as making no progress.
constexpr double kMinProgress = 1e-3;

}  // namespace

FailureLoss failure_loss(const Failures& failures, i64 world_size) {
  const double mean_time_between = 3600 * failures.mtbf_hours / static_cast<double>(world_size);
  const double interval = std::sqrt(2 * failures.save_seconds * mean_time_between);
  // Expected time of an interval with its save, divided by the interval: with immediate saves the limit is 1.
  const double factor =
      interval > 0 ? mean_time_between * std::expm1((interval + failures.save_seconds) / mean_time_between) / interval
                   : 1;
  const double progress = 1 / (std::exp(failures.restart_seconds / mean_time_between) * factor);
  return {.interval_seconds = interval,
          .failures_per_day = 86400 / mean_time_between,
          .lost_fraction = progress < kMinProgress ? 1 : 1 - progress};
}

SaveTime save_time(const PredictionInput& input) {
  const Workload& work = input.work;
  const double element = real(size_of(work.dtype)), master_bytes = work.dtype == DType::F32 ? 0 : 4;
  const HostRates& host = input.hardware.host;
  SaveTime save{.bytes = real(count_parameters(work.model).total()) *
                         (element + master_bytes + 4 * work.states.matrix_states)};
  const double bytes_per_rank = save.bytes / real(input.layout.world_size());
  if (host.nvme_bandwidth > 0) save.seconds = bytes_per_rank / (1e9 * host.nvme_bandwidth);
  if (host.link_bandwidth > 0) save.stall_seconds = bytes_per_rank / (1e9 * host.link_bandwidth);
  return save;
}

std::string save_text(const PredictionInput& input, const SaveTime& save) {
  std::string text = str("a checkpoint has ", human_bytes(save.bytes));
  if (save.seconds == 0) return text + "; the disk bandwidth is unknown (host.nvme_bandwidth)\n";
  text += str(": ", fixed(save.seconds, 1), " s on the local disks of ", input.layout.world_size(), " devices");
  if (save.stall_seconds > 0)
    text += str(", of which training waits for ", fixed(save.stall_seconds, 1), " s with async_save");
  return text + "\n";
}

TrainingCost training_cost(const PredictionInput& input, double step_seconds, double tokens, Failures failures) {
  const i64 world = input.layout.world_size();
  if (failures.save_seconds == 0) failures.save_seconds = save_time(input).seconds;
  const double lost_fraction = failures.mtbf_hours > 0 ? failure_loss(failures, world).lost_fraction : 0;
  const double hours = tokens / input.work.tokens() * step_seconds / 3600 / (1 - lost_fraction);
  return {.hours = hours, .device_hours = hours * real(world)};
}

}  // namespace mcpp
