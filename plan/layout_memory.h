// Memory estimates of many layouts, with a cache of what layouts have in common.
#pragma once
#include <map>
#include <string>
#include <tuple>

#include "model/peak_activations.h"
#include "plan/cost/layout.h"

namespace mcpp {

/// Memory estimator for one search. Not thread-safe.
class LayoutMemory {
 public:
  explicit LayoutMemory(const Workload& work) : work_(work) {}

  /// Returns the estimate for the pipeline rank that needs the most device memory: the first, which has most
  /// microbatches in flight, or the one with the output layer.
  MemoryEstimate peak(const Layout& layout);
  /// Returns the estimate for one pipeline rank.
  MemoryEstimate for_rank(const Layout& layout, int pipeline_rank);

 private:
  /// State shared by layouts with the same stages and schedule.
  struct Pipeline {
    RankMemorySpec share;
    std::vector<int> peak_candidate_ranks;
    std::map<int, PeakCandidates> moments;                               // by pipeline rank
    std::map<std::pair<int, const LayerSizes*>, PeakActivations> peaks;  // by pipeline rank and entry of sizes_
  };
  using PipelineKey = std::tuple<ScheduleKind, i64, i64, i64, std::string>;
  using SizesKey = std::tuple<i64, i64, i64, ScheduleKind, i64, i64, std::string>;
  using ParametersKey = std::tuple<SizesKey, int, i64, i64, bool, bool>;

  Pipeline& get_pipeline(const Layout& layout);
  LayerSizes& get_sizes(const Layout& layout);
  MemoryEstimate for_rank(const Layout& layout, LayerSizes& sizes, Pipeline& pipeline, int rank);
  const RankParameters& get_parameters(const Layout& layout, const ActivationSetup& setup, const RankMemorySpec& share);
  const PeakActivations& get_peak(LayerSizes& sizes, Pipeline& pipeline);

  const Workload& work_;
  std::map<ActivationSetup, LayerSizes> sizes_;
  std::map<PipelineKey, Pipeline> pipelines_;
  std::map<ParametersKey, RankParameters> parameters_;
};

}  // namespace mcpp
