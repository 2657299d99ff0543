// The planner on the configuration of a run: what `plan` and `pretrain --hardware` search, and what they say when there
// is nothing.
#pragma once
#include <optional>
#include <string>

#include "megatron_cpp/config/config.h"
#include "plan/measured_run.h"
#include "plan/search.h"

namespace mcpp {

/// Of a device's memory, the part that is left to libraries, the driver and fragments unless the user says otherwise.
inline constexpr double kMemoryReserve = 0.08;

/// Throws BadInput when nothing fits, with the layout that needs least and the smallest world that would do.
[[noreturn]] void fail_nothing_fits(const SearchResult& result, const Hardware& hardware, const Workload& work,
                                    const SearchLimits& limits);

/// Of the rank that needs most.
double most_memory(const Config& config, int world_size);

/// A step of the configuration's own layout, whatever any.layout is. BadInput when it cannot run on so many ranks, or
/// nobody knows how fast a disk is that it uses.
StepTime configured_step(const Job& any, const Config& config, int world_size);

/// What pretrain asks for: the hardware, as plan takes it, and whether to take the best layout.
struct PlanRequest {
  std::string hardware;
  std::string hardware_folder = "configs/hardware";
  bool plan = false;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("plan", self.plan, "take the layout that the planner finds best for --hardware, instead of [parallel]'s");
    visit("hardware", self.hardware,
          "kind of cluster that this runs on, as `plan` takes it: says how long a step is predicted to take, and warns "
          "when a layout would be much faster; \"\" = nothing is predicted");
    visit("hardware_folder", self.hardware_folder, "where the files of kinds of clusters are");
  }
};

struct PlannedRun {
  Config config;        ///< with the layout that is to be taken
  std::string text;     ///< for the log; empty when nothing was asked for
  std::string warning;  ///< that another layout is predicted to be much faster; empty when none is
  std::optional<PredictedStep> predicted = {};  ///< of the layout that is to be taken; nothing without hardware
};
/// The same on all ranks. BadInput when `plan` names no hardware, and when nothing fits or can run.
PlannedRun plan_run(const Config& config, const PlanRequest& request, int world_size);

}  // namespace mcpp
