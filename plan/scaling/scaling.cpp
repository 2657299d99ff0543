#include "plan/scaling/scaling.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/integer_math.h"
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

std::string no_layout_reason(const Hardware& hardware, const Workload& work, const SearchLimits& limits) {
  const std::vector<std::string> conflicts = limit_conflicts(hardware, work, limits);
  return conflicts.empty() ? "no layout divides the model and the batch" : conflicts.front();
}

/// Value to minimize.
double measure(const ScalingPoint& point, Objective objective) {
  switch (objective) {
    case Objective::Time:
      return point.cost.hours;
    case Objective::Memory:
      return point.found.best.front().memory.total();
    case Objective::DeviceHours:
      return point.cost.device_hours;
    case Objective::Deadline:
      return real(point.world_size);
  }
  fail(ExitCode::Internal, "no such objective");
}

}  // namespace

std::vector<ScalingPoint> scaling(const Hardware& hardware, const KernelTraits& program, const Workload& work,
                                  const SearchLimits& limits, const ScalingRequest& request) {
  std::vector<ScalingPoint> points;
  const ScalingPoint* first = nullptr;
  points.reserve(request.worlds.size());
  for (const i64 world : request.worlds) {
    Workload grown = work;
    if (request.is_weak) grown.global_batch_size = work.global_batch_size * world / request.worlds.front();
    SearchLimits of_world = limits;
    of_world.world_size = world;
    of_world.keep = 1;
    ScalingPoint point{.world_size = world, .global_batch_size = grown.global_batch_size, .found = {}};
    if (has_layouts(hardware, grown, of_world))
      point.found = search_layouts(hardware, program, grown, of_world);
    else
      point.conflict = no_layout_reason(hardware, grown, of_world);
    points.push_back(std::move(point));
    ScalingPoint& last = points.back();
    if (!last.fits()) continue;
    if (first == nullptr) first = &last;
    last.efficiency = rate(last) / rate(*first);
    const PredictionInput job{hardware, program, grown, last.found.best.front().layout};
    last.cost = training_cost(job, step_seconds(last), request.tokens, request.failures);
  }
  return points;
}

double serial_fraction(const std::vector<ScalingPoint>& points) {
  const auto first = std::ranges::find_if(points, &ScalingPoint::fits);
  const auto last =
      std::find_if(points.rbegin(), points.rend(), [](const ScalingPoint& point) { return point.fits(); });
  if (first == points.end() || first->world_size == last->world_size) return 0;
  const double n = real(last->world_size) / real(first->world_size);
  const double speed_up = step_seconds(*first) / step_seconds(*last);
  return std::clamp((n / speed_up - 1) / (n - 1), 0.0, 1.0);
}

const ScalingPoint* best_point(const std::vector<ScalingPoint>& points, Objective objective, double deadline_hours) {
  const auto value = [&](const ScalingPoint& point) { return std::pair(measure(point, objective), point.cost.hours); };
  const ScalingPoint* best = nullptr;
  for (const ScalingPoint& point : points) {
    if (!point.fits() || (deadline_hours > 0 && point.cost.hours > deadline_hours)) continue;
    if (best == nullptr || value(point) < value(*best)) best = &point;
  }
  return best;
}

}  // namespace mcpp
