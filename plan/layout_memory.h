// Memory estimates of many layouts, with a cache of the parts that layouts share.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "model/chunk_params.h"
#include "model/peak_activations.h"
#include "plan/cost/workload.h"
#include "plan/hardware/hardware.h"

namespace mcpp {

/// Memory estimator for one search. Not thread-safe.
class LayoutMemory {
 public:
  explicit LayoutMemory(const Workload& work)
      : work_(work),
        measurements_(std::make_shared<ModelMeasurements>(work.model, work.fp8)),
        chunk_params_(work.model) {}

  /// Returns the estimate for the pipeline rank that needs the most device memory: either the first rank, which has the
  /// most microbatches in flight, or the rank with the output layer.
  MemoryEstimate peak(const Layout& layout);
  /// Returns the estimate for one pipeline rank.
  MemoryEstimate estimate_rank(const Layout& layout, int pipeline_rank);
  const std::shared_ptr<ModelMeasurements>& measurements() const { return measurements_; }
  const Workload& workload() const { return work_; }

 private:
  /// State shared by layouts with the same stages and schedule.
  struct Pipeline {
    RankMemorySpec share;
    std::vector<int> peak_candidate_ranks;
    std::map<int, PeakCandidates> moments;                               // by pipeline rank
    std::map<std::pair<int, const LayerSizes*>, PeakActivations> peaks;  // by pipeline rank and sizes
  };
  using PipelineKey = std::tuple<ScheduleKind, i64, i64, i64, std::string, bool>;
  using SizesKey = std::tuple<i64, i64, i64, ScheduleKind, i64, i64, std::string>;
  using ParametersKey = std::tuple<SizesKey, int, i64, i64, bool, bool>;

  Pipeline& get_pipeline(const Layout& layout);
  LayerSizes& get_sizes(const Layout& layout) { return measurements_->sizes.get(work_.activations(layout)); }
  MemoryEstimate estimate_rank(const Layout& layout, LayerSizes& sizes, Pipeline& pipeline, int rank);
  const RankParameters& get_parameters(const Layout& layout, const ActivationSetup& setup, const RankMemorySpec& share);
  const PeakActivations& get_peak(LayerSizes& sizes, Pipeline& pipeline);

  const Workload& work_;
  std::shared_ptr<ModelMeasurements> measurements_;
  ChunkParams chunk_params_;
  std::map<PipelineKey, Pipeline> pipelines_;
  std::map<ParametersKey, RankParameters> parameters_;
};

// Offload placement: storage of data that does not fit in device memory.

/// Offload tiers of the optimizer states and of the weights. Only ZeRO 3 can offload weights.
struct OffloadPlacement {
  OffloadTier states = OffloadTier::Device, params = OffloadTier::Device;

  bool is_valid_for(const Layout& layout) const { return params == OffloadTier::Device || layout.zero_stage == 3; }
};
/// Returns the placements for which the hardware has rates, fastest first. The first one keeps everything on the
/// device. States are offloaded before weights because they are the largest and used once per step.
std::vector<OffloadPlacement> offload_placements(const HostRates& host);

/// Layout with its offload settings.
struct FittedLayout {
  Layout layout;
  MemoryEstimate memory;  ///< estimate of the rank that needs the most
  bool fits = false;
};
/// Treatment of offloadable states: keep as many as fit on the device, or none.
enum class OnDeviceStates { AllThatFit, None };
/// Fits `layout` into memory. Activations stay on the device if they fit; otherwise they are offloaded to host memory,
/// or to disk if host memory does not suffice. Offloaded states are kept on the device in steps of one percent as
/// `states` specifies. If nothing fits, returns the variant with the least device memory.
FittedLayout fit_with_offload(LayoutMemory& memory, const Hardware& hardware, Layout layout, double device_bytes,
                              OnDeviceStates states = OnDeviceStates::AllThatFit);

}  // namespace mcpp
