#include "plan/scaling/scaling.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/integer_math.h"
#include "model/flops.h"
#include "plan/layouts.h"

namespace mcpp {
namespace {

double step_seconds(const ScalingPoint& point) {
  return point.search.best.front().time.seconds;
}
/// Returns the samples per second and rank.
double rate(const ScalingPoint& point) {
  return real(point.global_batch_size) / step_seconds(point) / real(point.world_size);
}

std::string no_layout_reason(const Hardware& hardware, const Workload& work, const SearchLimits& limits) {
  const std::vector<std::string> conflicts = limit_conflicts(hardware, work, limits);
  return conflicts.empty() ? "no layout divides the model and the batch" : conflicts.front();
}

/// Returns the value that the objective minimizes.
double objective_value(const ScalingPoint& point, Objective objective) {
  switch (objective) {
    case Objective::Time:
      return point.cost.hours;
    case Objective::Memory:
      return point.search.best.front().memory.total();
    case Objective::DeviceHours:
      return point.cost.device_hours;
    case Objective::Deadline:
      return real(point.world_size);
  }
  fail(ExitCode::Internal, "unknown objective");
}

}  // namespace

std::vector<ScalingPoint> scaling(const Hardware& hardware, const KernelTraits& program, const Workload& work,
                                  const SearchLimits& limits, const ScalingRequest& request) {
  std::vector<ScalingPoint> points;
  const ScalingPoint* first = nullptr;
  points.reserve(request.worlds.size());
  for (const i64 world : request.worlds) {
    Workload scaled_work = work;
    if (request.is_weak) scaled_work.global_batch_size = work.global_batch_size * world / request.worlds.front();
    SearchLimits world_limits = limits;
    world_limits.world_size = world;
    world_limits.keep = 1;
    ScalingPoint point{.world_size = world, .global_batch_size = scaled_work.global_batch_size, .search = {}};
    if (has_layouts(hardware, scaled_work, world_limits))
      point.search = search_layouts(hardware, program, scaled_work, world_limits);
    else
      point.conflict = no_layout_reason(hardware, scaled_work, world_limits);
    points.push_back(std::move(point));
    ScalingPoint& last = points.back();
    if (!last.fits()) continue;
    if (first == nullptr) first = &last;
    last.efficiency = rate(last) / rate(*first);
    const PredictionInput input{hardware, program, scaled_work, last.search.best.front().layout};
    last.cost = training_cost(input, step_seconds(last), request.tokens, request.failures);
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
  const auto value = [&](const ScalingPoint& point) {
    return std::pair(objective_value(point, objective), point.cost.hours);
  };
  const ScalingPoint* best = nullptr;
  for (const ScalingPoint& point : points) {
    if (!point.fits() || (deadline_hours > 0 && point.cost.hours > deadline_hours)) continue;
    if (best == nullptr || value(point) < value(*best)) best = &point;
  }
  return best;
}

namespace {

/// Returns a lower bound in device hours: all operations of the model at the highest of the device's rates. 0 if each
/// GEMM size has its own rate.
double min_device_hours(const Hardware& hardware, const Workload& work, double tokens) {
  if (hardware.measured(work.gemms())) return 0;
  double highest = std::max(hardware.gemm_flops(work.gemms()), 1e12 * hardware.device.attention_attained);
  for (const GemmRecipe recipe : work.recipes()) highest = std::max(highest, hardware.peak_flops(gemm_type_of(recipe)));
  highest = std::max(highest, hardware.peak_flops(work.gemms()));
  return tokens * flops_per_token(work.model) / highest / 3600;
}

/// Returns the odd part of the factor that the limits require of every world size.
i64 odd_factor(const SearchLimits& limits) {
  const auto value_or_one = [](i64 size) { return std::max<i64>(size, 1); };
  i64 factor = value_or_one(limits.tp) * value_or_one(limits.cp) * value_or_one(limits.pp);
  while (factor % 2 == 0) factor /= 2;
  return factor;
}

}  // namespace

MinDevices find_min_devices(const Hardware& hardware, const KernelTraits& program, const Workload& work,
                            const SearchLimits& limits, const Deadline& deadline, const Failures& failures) {
  const i64 max_world = hardware.links.ranks.back();
  const double device_hours = min_device_hours(hardware, work, deadline.tokens);
  MinDevices result{.smallest = {}, .fastest = {}, .min_hours = device_hours / real(max_world)};
  // Returns true if this world size meets the deadline, and stores it as found.
  const auto try_world = [&](i64 world) {
    if (device_hours > deadline.hours * real(world)) return false;
    ScalingPoint point =
        scaling(hardware, program, work, limits, {.worlds = {world}, .tokens = deadline.tokens, .failures = failures})
            .front();
    if (!point.fits()) return false;
    if (point.cost.hours <= deadline.hours) {
      result.smallest = std::move(point);
      return true;
    }
    if (!result.fastest || point.cost.hours < result.fastest->cost.hours) result.fastest = std::move(point);
    return false;
  };
  constexpr i64 kParts = 8;
  for (i64 world = odd_factor(limits); world <= max_world; world *= 2) {
    if (!try_world(world)) continue;
    for (i64 part = kParts / 2 + 1; part < kParts && world % kParts == 0; ++part)
      if (try_world(world / kParts * part)) break;
    break;
  }
  return result;
}

}  // namespace mcpp
