#include "plan/scaling.h"

#include <algorithm>

#include "plan/cost/real.h"
#include "plan/layouts.h"

namespace mcpp {
namespace {

double step_seconds(const ScalingPoint& point) {
  return point.found.best.front().time.seconds;
}
/// Samples per second and rank.
double rate(const ScalingPoint& point) {
  return real(point.global_batch_size) / step_seconds(point) / real(point.world_size);
}

std::string why_none(const Hardware& hardware, const Workload& work, const SearchLimits& limits) {
  const std::vector<std::string> conflicts = limit_conflicts(hardware, work, limits);
  return conflicts.empty() ? "no layout divides the model and the batch" : conflicts.front();
}

}  // namespace

std::vector<ScalingPoint> scaling(const Hardware& hardware, const Implementation& program, const Workload& work,
                                  const SearchLimits& limits, const std::vector<i64>& worlds, bool is_weak) {
  std::vector<ScalingPoint> points;
  const ScalingPoint* first = nullptr;
  points.reserve(worlds.size());
  for (const i64 world : worlds) {
    Workload grown = work;
    if (is_weak) grown.global_batch_size = work.global_batch_size * world / worlds.front();
    SearchLimits of_world = limits;
    of_world.world_size = world;
    of_world.keep = 1;
    ScalingPoint point{.world_size = world, .global_batch_size = grown.global_batch_size, .found = {}};
    if (has_layouts(hardware, grown, of_world))
      point.found = search_layouts(hardware, program, grown, of_world);
    else
      point.conflict = why_none(hardware, grown, of_world);
    points.push_back(std::move(point));
    if (points.back().found.best.empty()) continue;
    if (first == nullptr) first = &points.back();
    points.back().efficiency = rate(points.back()) / rate(*first);
  }
  return points;
}

double serial_part(const std::vector<ScalingPoint>& points) {
  const auto fits = [](const ScalingPoint& point) { return !point.found.best.empty(); };
  const auto first = std::ranges::find_if(points, fits);
  const auto last = std::find_if(points.rbegin(), points.rend(), fits);
  if (first == points.end() || first->world_size == last->world_size) return 0;
  const double n = real(last->world_size) / real(first->world_size);
  const double speed_up = step_seconds(*first) / step_seconds(*last);
  return std::clamp((n / speed_up - 1) / (n - 1), 0.0, 1.0);
}

}  // namespace mcpp
