#include "plan/deadline.h"

namespace mcpp {

std::optional<TimedWorld> fewest_devices(const Hardware& hardware, const Implementation& program, const Workload& work,
                                         const SearchLimits& limits, const Deadline& deadline,
                                         const Failures& failures) {
  const double steps = deadline.tokens / work.tokens();
  const auto in_time = [&](i64 world) -> std::optional<TimedWorld> {
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
