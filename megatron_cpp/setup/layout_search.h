// Layout search for the configuration of a run, shared by `plan` and `pretrain --hardware`.
#pragma once
#include <optional>
#include <string>

#include "megatron_cpp/config/config.h"
#include "plan/cost/workload.h"
#include "plan/measured_run.h"
#include "plan/search.h"

namespace mcpp {

/// Returns the model, precision, largest global batch and optimizer of a configuration and, if attention is limited to
/// documents, the mean document length according to the datasets' metadata. Throws BadInput if the metadata is damaged.
Workload make_workload(const Config& config);
/// Throws BadInput if the workload has recipes of low-precision GEMMs that cannot be predicted: all on a CPU, and
/// `tensorwise` or `delayed` on a device without fp8, where a run does not start.
void check_low_precision_rates(const Hardware& hardware, const Workload& work);
/// Returns the recipes of a workload that the device emulates in bf16 or whose rate is not measured, one line each.
std::string low_precision_text(const Hardware& hardware, const Workload& work);
/// Default fraction of device memory that is reserved for libraries, the driver and fragmentation.
inline constexpr double kMemoryReserve = 0.08;

/// Throws BadInput that reports that no layout fits. The message names the layout that needs the least memory and the
/// smallest world size that would suffice.
[[noreturn]] void fail_no_layout_fits(const SearchResult& result, const Hardware& hardware, const Workload& work,
                                      const SearchLimits& limits);

/// Returns the maximum memory over all ranks.
double max_rank_memory(const Config& config, int world_size);

/// Returns the configuration for estimates on `hardware` (with_dispatch_nodes()): a node has the ranks that the nearest
/// links join.
Config on_nodes_of(const Hardware& hardware, Config config);

/// Predicts a step of the layout in `config`; base.layout is ignored. Throws BadInput if the layout cannot run on
/// `world_size` ranks, or if it uses a disk of unknown speed.
StepTime predict_configured_step(const PredictionInput& base, const Config& config, int world_size);

/// Planner options of pretrain: the hardware and whether to use the best layout.
struct PlanRequest {
  std::string hardware;
  std::string hardware_folder = "configs/hardware";
  bool plan = false;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("plan", self.plan, "use the planner's best layout for --hardware instead of the layout in [parallel]");
    visit("hardware", self.hardware,
          "cluster type, as for `plan`: prints the predicted step time, and warns "
          "if a layout would be much faster; \"\" = no prediction");
    visit("hardware_folder", self.hardware_folder, "folder of cluster type files");
  }
};

struct PlannedRun {
  Config config;        ///< configuration with the layout to be used
  std::string text;     ///< text to log; empty if no prediction was requested
  std::string warning;  ///< warning that names a layout predicted to be much faster; empty if there is none
  i64 node_ranks = 0;   ///< ranks of a node of the hardware; 0 = unknown
  std::optional<PredictedStep> predicted = {};  ///< prediction for the layout to be used; std::nullopt without hardware
};
/// Returns the configurations of planned stages, or of the run without stages.
std::vector<Config> configs_of(const std::vector<PlannedRun>& stages);
/// Predicts the run and, if `request.plan`, replaces its layout by the best one. Identical on all ranks. Throws
/// BadInput if `plan` is set without hardware, or if no layout fits or can run.
PlannedRun plan_run(const Config& config, const PlanRequest& request, int world_size);

}  // namespace mcpp
