#include "plan/step/elsewhere.h"

#include <algorithm>

#include "base/strings.h"
#include "plan/cost/real.h"

namespace mcpp {

double Elsewhere::element() const {
  return real(size_of(job_.work.dtype));
}

double Elsewhere::over_link(double bytes) const {
  const double rate = 1e9 * job_.hardware.host.link_bandwidth;
  return rate > 0 ? bytes / rate : job_.hardware.traffic_seconds(2 * bytes);
}

double Elsewhere::in_host(double bytes) const {
  const double rate = 1e9 * job_.hardware.host.memory_bandwidth;
  return rate > 0 ? bytes / rate : job_.hardware.traffic_seconds(bytes);
}

void Elsewhere::add_to(UnitTime& passes, const StageContents& stage, double weights) const {
  double copied = 0, on_disk = 0;  // bytes of each direction
  const auto add = [&](OffloadTier tier, double bytes) {
    if (tier != OffloadTier::Device) copied += bytes;
    if (tier == OffloadTier::File) on_disk += bytes;
  };
  if (layout_.activations_place != OffloadTier::Device)
    add(layout_.activations_place,
        real(stage_activations(job_.work.model, layout_.activations(job_.work), stage).away));
  // With a second copy of the weights in the node they come once a step, which is little.
  if (layout_.node_ranks == 1) add(layout_.params_place, element() * weights);
  if (copied <= 0) return;
  const auto wait = [&](PassTime& pass, double beside) {
    pass.elsewhere += over_link(copied);
    if (on_disk > 0) pass.elsewhere += std::max(0.0, over_disk(on_disk) - pass.total() - beside);
  };
  wait(passes.forward, 0);
  wait(passes.backward_input, passes.backward_weight.total());
}

double Elsewhere::update_seconds(double weights) const {
  const double there = weights * layout_.share_elsewhere(), w = element();
  const double states = 4 * (job_.work.states.of_matrices + job_.work.states.master(job_.work.dtype));
  double copied = there * (4 + 2 * w), on_disk = 0;
  const double updated = in_host(there * (4 + 2 * states + w));
  if (layout_.states_place == OffloadTier::File) on_disk += 2 * states * there;
  if (layout_.params_place != OffloadTier::Device) copied += w * weights;
  if (layout_.params_place == OffloadTier::File) on_disk += 2 * w * weights;
  return over_link(copied) + std::max(updated, on_disk > 0 ? over_disk(on_disk) : 0);
}

std::vector<std::string> missing_rates(const Hardware& hardware, const Layout& layout) {
  std::vector<std::string> found;
  if (layout.uses(OffloadTier::File) && hardware.host.nvme_bandwidth <= 0)
    found.push_back(str("host.nvme_bandwidth: is not known of ", hardware.device.name,
                        ", but the layout keeps on a disk what it has not in memory (", layout.describe(), ")"));
  return found;
}

}  // namespace mcpp
