#include "plan/deadline.h"

#include <algorithm>

#include "model/flops.h"

namespace mcpp {
namespace {

/// Hours that no layout of one device goes below, or of several together: all operations of the model at the highest of
/// its rates. 0 where each size of a product has a rate of its own.
double least_device_hours(const Hardware& hardware, const Workload& work, double tokens) {
  if (hardware.measured(work.products)) return 0;
  const double highest = std::max({hardware.peak_flops(work.products), hardware.product_flops(work.products),
                                   1e12 * hardware.device.attention_attained});
  return tokens * flops_per_token(work.model) / highest / 3600;
}

}  // namespace

std::optional<TimedWorld> fewest_devices(const Hardware& hardware, const Implementation& program, const Workload& work,
                                         const SearchLimits& limits, const Deadline& deadline,
                                         const Failures& failures) {
  const double steps = deadline.tokens / work.tokens();
  const double least = least_device_hours(hardware, work, deadline.tokens);
  const auto in_time = [&](i64 world) -> std::optional<TimedWorld> {
    if (least > deadline.hours * static_cast<double>(world)) return std::nullopt;
    TimedWorld timed{.point = scaling(hardware, program, work, limits, {world}, false).front()};
    if (timed.point.found.best.empty()) return std::nullopt;
    const double lost = failures.device_hours > 0 ? loss_by_failures(failures, world).lost : 0;
    timed.hours = steps * timed.point.found.best.front().time.seconds / 3600 / (1 - lost);
    if (timed.hours > deadline.hours) return std::nullopt;
    return timed;
  };
  constexpr i64 kParts = 8;
  for (i64 world = 1; world <= hardware.links.ranks.back(); world *= 2) {
    const std::optional<TimedWorld> enough = in_time(world);
    if (!enough) continue;
    for (i64 part = kParts / 2 + 1; part < kParts && world % kParts == 0; ++part)
      if (const std::optional<TimedWorld> fewer = in_time(world / kParts * part)) return fewer;
    return enough;
  }
  return std::nullopt;
}

}  // namespace mcpp
