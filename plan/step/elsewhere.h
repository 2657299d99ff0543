// How long a rank takes to move what is not in its own memory: optimizer states, weights and activations that are in
// the memory of its host or on a disk.
#pragma once
#include <string>
#include <vector>

#include "parallel/pp/stages.h"
#include "plan/cost/job.h"
#include "plan/cost/pass_time.h"

namespace mcpp {

/// Weights that a rank keeps, as often as they come to be gathered for a pass of a microbatch.
struct Brought {
  double forward = 0, backward = 0;
};

/// Of a job that outlives it. Copies between a device and its host wait for one another, and disks work beside both.
/// Where links or the host's memory have no rates the device is the host, and its memory's rate counts.
class Elsewhere {
 public:
  explicit Elsewhere(const Job& job) : job_(job), layout_(job.layout) {}

  /// Adds to the passes of a microbatch through a stage what they wait for its activations, and for the `weights` that
  /// the rank keeps of it.
  void add_to(UnitTime& passes, const StageContents& stage, const Brought& weights) const;
  /// To update so many weights: those whose states are elsewhere have their gradients go there, and come back.
  double update_seconds(double weights) const;

 private:
  double over_link(double bytes) const;
  double in_host(double bytes) const;
  /// Checksums of what goes to a disk or comes from it, which nothing hides.
  double checked(double bytes) const { return in_host(bytes); }
  double updated(double weights, double states) const;
  double over_disk(double bytes) const { return bytes / (1e9 * job_.hardware.host.nvme_bandwidth); }
  double element() const;

  const Job& job_;
  const Layout& layout_;
};

/// Rates that the hardware must have for where a layout keeps what, and has not: "host.nvme_bandwidth: ...".
std::vector<std::string> missing_rates(const Hardware& hardware, const Layout& layout);

}  // namespace mcpp
