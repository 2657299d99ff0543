#include "plan/step/offload_cost.h"

#include <algorithm>

#include "base/integer_math.h"
#include "base/strings.h"
#include "plan/cost/kernel_times.h"

namespace mcpp {

double OffloadCost::element() const {
  return real(size_of(job_.work.dtype));
}

double OffloadCost::over_link(double bytes) const {
  const double rate = 1e9 * job_.hardware.host.link_bandwidth;
  return rate > 0 ? bytes / rate : job_.hardware.traffic_seconds(2 * bytes);
}

double OffloadCost::in_host(double bytes) const {
  const double rate = 1e9 * job_.hardware.host.memory_bandwidth;
  return rate > 0 ? bytes / rate : job_.hardware.traffic_seconds(bytes);
}

void OffloadCost::add_to(UnitTime& passes, const StageContents& stage, const WeightFetchCounts& weights) const {
  double activations = 0;
  if (layout_.activations_tier != OffloadTier::Device)
    activations = real(stage_activations(job_.work.model, layout_.activations(job_.work), stage).offloaded);
  // If the node has a secondary weight shard, weights are gathered once per step, which is negligible.
  const bool fetches_weights = layout_.params_tier != OffloadTier::Device && !layout_.has_secondary_shard();
  const auto wait = [&](PassTime& pass, double of_weights, double beside) {
    const double bytes = fetches_weights ? element() * of_weights : 0;
    const double on_disk = (layout_.activations_tier == OffloadTier::File ? activations : 0) +
                           (layout_.params_tier == OffloadTier::File ? bytes : 0);
    pass.offloaded += over_link(activations + bytes) + checked(on_disk);
    if (on_disk > 0) pass.offloaded += std::max(0.0, over_disk(on_disk) - pass.total() - beside);
  };
  wait(passes.forward, weights.forward, 0);
  wait(passes.backward_input, weights.backward, passes.backward_weight.total());
}

double OffloadCost::update_seconds(double weights) const {
  const double there = weights * layout_.effective_offloaded_fraction(), w = element();
  const double states = 4 * (job_.work.states.matrix_states + job_.work.states.master(job_.work.dtype));
  double copied = there * (4 + 2 * w), on_disk = 0;
  if (layout_.states_tier == OffloadTier::File) on_disk += 2 * states * there;
  if (layout_.params_tier != OffloadTier::Device) copied += w * weights;
  if (layout_.params_tier == OffloadTier::File) on_disk += 2 * w * weights;
  return over_link(copied) + std::max(updated(there, states) + checked(on_disk), on_disk > 0 ? over_disk(on_disk) : 0);
}

/// Updates in host memory; on CPUs, which are their own host, as fast as for weights that stay there.
double OffloadCost::updated(double weights, double states) const {
  if (job_.hardware.host.memory_bandwidth > 0) return in_host(weights * (4 + 2 * states + element()));
  return weights * kernel_times(job_.hardware, job_.program, job_.work).update;
}

std::vector<std::string> missing_rates(const Hardware& hardware, const Layout& layout) {
  std::vector<std::string> errors;
  if (layout.uses(OffloadTier::File) && hardware.host.nvme_bandwidth <= 0)
    errors.push_back(str("host.nvme_bandwidth: is not known of ", hardware.device.name,
                         ", but the layout keeps on a disk what it has not in memory (", layout.describe(), ")"));
  return errors;
}

}  // namespace mcpp
