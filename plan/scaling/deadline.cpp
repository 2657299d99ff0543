#include "plan/scaling/deadline.h"

#include <algorithm>

#include "base/integer_math.h"
#include "model/flops.h"

namespace mcpp {
namespace {

/// Lower bound in device hours: all operations of the model at the highest of the device's rates. 0 if each product
/// size has its own rate.
double min_device_hours(const Hardware& hardware, const Workload& work, double tokens) {
  if (hardware.measured(work.products)) return 0;
  const double highest = std::max({hardware.peak_flops(work.products), hardware.product_flops(work.products),
                                   1e12 * hardware.device.attention_attained});
  return tokens * flops_per_token(work.model) / highest / 3600;
}

/// Returns the odd part of the factor that the limits require of every world size.
i64 odd_factor(const SearchLimits& limits) {
  const auto requested = [](i64 size) { return std::max<i64>(size, 1); };
  i64 factor = requested(limits.tensor_model_parallel_size) * requested(limits.context_parallel_size) *
               requested(limits.pipeline_model_parallel_size);
  while (factor % 2 == 0) factor /= 2;
  return factor;
}

}  // namespace

FewestDevices find_fewest_devices(const Hardware& hardware, const KernelTraits& program, const Workload& work,
                                  const SearchLimits& limits, const Deadline& deadline, const Failures& failures) {
  const i64 max_world = hardware.links.ranks.back();
  const double least = min_device_hours(hardware, work, deadline.tokens);
  FewestDevices result{.found = {}, .fastest = {}, .min_hours = least / real(max_world)};
  // Returns true if this world size meets the deadline, and stores it as found.
  const auto try_world = [&](i64 world) {
    if (least > deadline.hours * real(world)) return false;
    ScalingPoint point =
        scaling(hardware, program, work, limits, {.worlds = {world}, .tokens = deadline.tokens, .failures = failures})
            .front();
    if (!point.fits()) return false;
    if (point.cost.hours <= deadline.hours) {
      result.found = std::move(point);
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
