// Time to move offloaded optimizer states, weights and activations between device, host memory and disk.
#pragma once
#include <string>
#include <vector>

#include "parallel/pp/stages.h"
#include "plan/cost/pass_time.h"
#include "plan/cost/prediction_input.h"

namespace mcpp {

/// Weights stored by a rank that are fetched for a microbatch's passes, counted each time they are gathered.
struct WeightFetchCounts {
  double forward = 0, backward = 0;
};

/// Predicts offload time. Copies between a device and its host wait for one another; disk I/O overlaps with both. If
/// links or host memory have no rates, the device is its own host and its memory's rate applies.
class OffloadCost {
 public:
  explicit OffloadCost(const PredictionInput& job) : job_(job), layout_(job.layout) {}

  /// Adds to the passes of a microbatch through a stage the time that they wait for its offloaded activations and for
  /// `weights`.
  void add_to(UnitTime& passes, const StageContents& stage, const WeightFetchCounts& weights) const;
  /// Returns the seconds to update `weights` weights. Gradients of weights with offloaded states are copied there, and
  /// the weights are copied back.
  double update_seconds(double weights) const;

 private:
  double over_link(double bytes) const;
  double in_host(double bytes) const;
  /// Checksums of data written to or read from a disk, which are never hidden.
  double checked(double bytes) const { return in_host(bytes); }
  double updated(double weights, double states) const;
  double over_disk(double bytes) const { return bytes / (1e9 * job_.hardware.host.nvme_bandwidth); }
  double element() const;

  const PredictionInput& job_;
  const Layout& layout_;
};

/// Returns the rates that the hardware lacks for the offloads of a layout: "host.nvme_bandwidth: ...".
std::vector<std::string> missing_rates(const Hardware& hardware, const Layout& layout);

}  // namespace mcpp
