// How much memory a rank of a layout needs, for many layouts: what they have in common is kept.
#pragma once
#include <map>
#include <string>
#include <tuple>

#include "model/peak_activations.h"
#include "plan/cost/layout.h"

namespace mcpp {

/// One search's; not for several threads.
class LayoutMemory {
 public:
  explicit LayoutMemory(const Workload& work) : work_(work) {}

  /// Of the rank that needs most in its own memory: the first of the pipeline, which has most microbatches in flight,
  /// or the one with the output layer.
  MemoryEstimate most(const Layout& layout);
  /// Of a rank of the pipeline.
  MemoryEstimate of_rank(const Layout& layout, int pipeline_rank);

 private:
  /// What layouts with the same stages and schedule have in common.
  struct Pipeline {
    RankShare share;
    std::vector<int> ranks_to_ask;
    std::map<int, FullestMoments> moments;                               // of each rank that was asked
    std::map<std::pair<int, const LayerSizes*>, PeakActivations> peaks;  // of a rank, by what is in sizes_
  };
  using PipelineKey = std::tuple<ScheduleKind, i64, i64, i64, std::string>;
  using SizesKey = std::tuple<i64, i64, i64, ScheduleKind, i64, i64, std::string>;
  using ParametersKey = std::tuple<SizesKey, int, i64, i64, bool, bool>;

  Pipeline& pipeline_of(const Layout& layout);
  LayerSizes& sizes_of(const Layout& layout);
  MemoryEstimate of_rank(const Layout& layout, LayerSizes& sizes, Pipeline& pipeline, int rank);
  const RankParameters& parameters_of(const Layout& layout, const ActivationSetup& setup, const RankShare& share);
  const PeakActivations& peak_of(LayerSizes& sizes, Pipeline& pipeline);

  const Workload& work_;
  std::map<ActivationSetup, LayerSizes> sizes_;
  std::map<PipelineKey, Pipeline> pipelines_;
  std::map<ParametersKey, RankParameters> parameters_;
};

}  // namespace mcpp
