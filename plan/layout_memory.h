// How much memory a rank of a layout needs, for many layouts: what they have in common is kept.
#pragma once
#include <map>
#include <string>
#include <tuple>

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
  using ShareKey = std::tuple<ScheduleKind, i64, i64, i64, std::string>;
  using SizesKey = std::tuple<i64, i64, i64, ScheduleKind, i64, i64, std::string>;
  using ParametersKey = std::tuple<SizesKey, int, i64, i64, bool, bool>;

  static std::vector<int> ranks_to_ask(const RankShare& share, ScheduleKind kind);
  RankShare& share_of(const Layout& layout);
  const RankParameters& parameters_of(const Layout& layout, const ActivationSetup& setup, const RankShare& share);

  const Workload& work_;
  std::map<ShareKey, RankShare> shares_;
  std::map<ParametersKey, RankParameters> parameters_;
};

}  // namespace mcpp
