// Predicted time of a step and its breakdown.
#pragma once
#include <string>
#include <vector>

#include "parallel/pp/simulate.h"
#include "parallel/stages.h"
#include "plan/cost/layer_time.h"
#include "plan/cost/rank_cost_model.h"
#include "plan/cost/workload.h"
#include "plan/step/weight_counts.h"

namespace mcpp {

// Time to move offloaded optimizer states, weights and activations between device, host memory and disk.

/// Number of stored weights that a rank fetches for the passes of a microbatch; weights that are gathered twice count
/// twice.
struct WeightFetchCounts {
  double forward = 0, backward = 0;
};

/// Predicts offload time. Copies between a device and its host are serialized; disk I/O overlaps with both. Without
/// rates for the links or for host memory, the device is treated as its own host, with the rate of device memory.
class OffloadCost {
 public:
  explicit OffloadCost(const PredictionInput& input) : input_(input), layout_(input.layout) {}

  /// Adds to `passes`, the passes of a microbatch through a stage, the time that they wait for offloaded activations
  /// and for `weights`.
  void add_to(UnitTime& passes, const StageContents& stage, const WeightFetchCounts& weights) const;
  /// Returns the seconds to update `weights` weights. Gradients of weights with offloaded states are copied to the tier
  /// of the states, and the weights are copied back.
  double update_seconds(double weights) const;

 private:
  double link_seconds(double bytes) const;
  double host_memory_seconds(double bytes) const;
  /// Returns the time to compute checksums of data written to or read from a disk, which is never overlapped.
  double checksum_seconds(double bytes) const { return host_memory_seconds(bytes); }
  double host_update_seconds(double weights, double states) const;
  double disk_seconds(double bytes) const { return bytes / (1e9 * input_.hardware.host.nvme_bandwidth); }
  double element() const;

  const PredictionInput& input_;
  const Layout& layout_;
};

/// Returns the rates that the hardware lacks for the offloads of a layout: "host.nvme_bandwidth: ...".
std::vector<std::string> missing_rates(const Hardware& hardware, const Layout& layout);

/// Time of a step in seconds. The parts belong to the busiest rank and add up to `seconds`.
struct StepTime {
  double seconds = 0;
  PassTime work;             ///< passes of all microbatches
  double core_wait = 0;      ///< wait time for CPU cores that other ranks use
  double bubble = 0;         ///< pipeline bubble, assuming that messages take no time
  double messages = 0;       ///< time added by messages between stages
  double data_parallel = 0;  ///< exposed gradient reduction and weight gathering before and after the passes
  double optimizer = 0;
  double data = 0;  ///< time to copy samples from a local disk to the device; never overlapped
  int rank = 0;     ///< pipeline rank with the most work

  double communication() const { return work.communication() + messages + data_parallel; }
};

/// Predicts a step. The layout must be one that layout_conflicts() accepts.
StepTime step_time(const PredictionInput& input);
/// Predicts the step for each pipeline rank: the rank's own work, and wait time for the rest of the step.
std::vector<StepTime> step_time_by_rank(const PredictionInput& input);
/// Returns a lower bound of step_time() that is much faster to compute. For a rank it adds up its work, the time in
/// which the first microbatch reaches it through the earlier ranks and the last gradient returns through them, and the
/// update.
double step_time_lower_bound(const PredictionInput& input);

/// Pipeline timeline of the first microbatches of a step, for drawing.
struct StepTimeline {
  Schedule schedule;
  Timeline timeline;             ///< seconds
  std::vector<UnitTime> stages;  ///< breakdown of a microbatch's passes, by stage
};
StepTimeline step_timeline(const PredictionInput& input, i64 max_microbatches);

}  // namespace mcpp
