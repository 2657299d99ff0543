// Expected result of a layout search, found by checking every layout.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>

#include "plan/layout_memory.h"
#include "plan/layouts.h"
#include "plan/search.h"
#include "plan/step/step_time.h"

namespace mcpp::test {

/// Exhaustive search with these limits, run by the constructor. The objective and the number of results to keep do not
/// matter.
class EveryLayout {
 public:
  EveryLayout(const Hardware& hardware, const Workload& work, const SearchLimits& limits)
      : hardware_(hardware), work_(work), limits_(limits), memory_(work) {
    for_each_layout(hardware, work, limits, [&](const Layout& layout) {
      bool fits = false;
      for (const OffloadTier tier : {OffloadTier::Device, OffloadTier::Host, OffloadTier::File})
        fits |= check_tier(layout, tier, fits);
      fitting += fits;
      if (layout.recompute.granularity == Recompute::Granularity::Full) check_partial_recomputation(layout);
    });
  }

  double best_seconds = 1e30;
  std::set<std::pair<double, double>> by_memory;  ///< bytes and seconds of layouts with activations on the device
  i64 fitting = 0;                                ///< counted like the search does
  i64 offloaded = 0;                              ///< layouts that fit only with offloaded activations
  i64 partly_recomputed = 0;  ///< layouts that fit if some or all layers are recomputed, but not without

 private:
  /// Returns true if the layout fits with activations in this tier. `fits`: true if it fits with a nearer tier.
  bool check_tier(Layout layout, OffloadTier tier, bool fits) {
    layout.activations_tier = tier;
    const MemoryEstimate estimate = memory_.peak(layout);
    const double in_host = tier == OffloadTier::Host ? estimate.offloaded_activations : 0;
    if (estimate.total() > limits_.memory_bytes || in_host > 1e9 * hardware_.host.memory) return false;
    offloaded += !fits && tier != OffloadTier::Device;
    const double seconds = time(layout);
    if (tier == OffloadTier::Device) by_memory.emplace(estimate.total(), seconds);
    return true;
  }

  /// Checks any number of recomputed layers per stage. Counts a layout once if it fits with some but not all of them.
  void check_partial_recomputation(Layout layout) {
    layout.activations_tier = OffloadTier::Device;
    layout.recompute.method = Recompute::Method::Block;
    i64 most_layers = 0;
    for (const StageContents& stage : split_stages(layout, work_.model.num_layers))
      most_layers = std::max(most_layers, stage.num_layers());
    bool fits_partly_recomputed = false, fits_without = false;
    for (layout.recompute.num_layers = 0; layout.recompute.num_layers < 16; ++layout.recompute.num_layers) {
      if (memory_.peak(layout).total() > limits_.memory_bytes) continue;
      fits_without |= layout.recompute.num_layers == 0;
      fits_partly_recomputed |= layout.recompute.num_layers < most_layers;
      time(layout);
    }
    if (fits_partly_recomputed && !fits_without) ++fitting, ++partly_recomputed;
  }

  double time(const Layout& layout) {
    const PredictionInput input{hardware_, program_, work_, layout};
    const double seconds = step_time(input).seconds;
    EXPECT_LE(step_time_lower_bound(input), seconds * (1 + 1e-12)) << layout.describe();
    best_seconds = std::min(best_seconds, seconds);
    return seconds;
  }

  const Hardware& hardware_;
  const Workload& work_;
  const SearchLimits& limits_;
  const KernelTraits program_;
  LayoutMemory memory_;
};

}  // namespace mcpp::test
