// Options of megatron_cpp plan.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "megatron_cpp/commands/plan/plan_commands.h"
#include "megatron_cpp/setup/layout_search.h"
#include "plan/scaling/deadline.h"

namespace mcpp {

/// Upper limit for numbers of ranks: more than any links support, and small enough to avoid overflow.
inline constexpr double kMaxRanks = 1e6;

struct PlanOptions {
  std::string config;
  std::string hardware;
  std::string hardware_folder = "configs/hardware";
  i64 world_size = 0;
  i64 tp = 0, cp = 0, pp = 0, ep = 0, micro_batch_size = 0;
  double expert_imbalance = Workload().expert_imbalance;
  double document_tokens = 0;
  Objective objective = Objective::Time;
  i64 keep = 5;
  double memory_reserve = kMemoryReserve;
  bool allow_lossy_comm = false, explain = false, predict = false, json = false;
  std::string emit, svg, html;
  std::vector<i64> scale;
  bool weak = false;
  Failures failures;
  Deadline deadline;
  std::string from_run, emit_hardware;

  /// Returns true if the smallest number of devices that trains in time is requested, without given candidates.
  bool should_minimize_devices() const {
    return scale.empty() && (objective == Objective::Deadline || deadline.hours > 0);
  }

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("config", self.config, "configuration file in TOML, as pretrain takes it");
    visit("hardware", self.hardware, "kind of cluster: a file of the hardware folder without .toml, or any file");
    visit("hardware_folder", self.hardware_folder, "where the files of kinds of clusters are");
    visit("world_size", self.world_size, "ranks, one for each device", between(1, kMaxRanks));
    visit("tp", self.tp, "only layouts with this tensor_model_parallel_size; 0 = any", between(0, 4096));
    visit("cp", self.cp, "the same of context_parallel_size", between(0, 4096));
    visit("pp", self.pp, "the same of pipeline_model_parallel_size", between(0, 4096));
    visit("ep", self.ep, "the same of expert_model_parallel_size", between(0, 4096));
    visit("expert_imbalance", self.expert_imbalance,
          "tokens that come to the experts of the busiest rank, over an even share", between(1, 100));
    visit("document_tokens", self.document_tokens,
          "tokens of a document on average, which attention stays inside with data.reset_attention_mask; 0 = as the "
          "datasets' .json files say, if they are here",
          between(0, 1e15));
    visit("micro_batch_size", self.micro_batch_size, "the same of micro_batch_size", between(0, 4096));
    visit("objective", self.objective,
          "what is to be least: the time of a step, the memory of a device, the device hours of a training on one of "
          "--scale's worlds, or the devices that train on --tokens in --deadline_hours");
    visit("keep", self.keep, "how many of the best layouts to show", between(1, 100));
    visit("memory_reserve", self.memory_reserve,
          "part of a device's memory that is left to libraries, the driver and fragments", between_excluding_max(0, 1));
    visit("allow_lossy_comm", self.allow_lossy_comm,
          "also layouts whose ranks send weights or gradients with fewer bits than the configuration says, which "
          "changes what is trained");
    visit("explain", self.explain, "also the usual recipe, and where the time of the best layout's step goes");
    visit("predict", self.predict,
          "only how long a step of the configuration's own layout takes, and the memory that it needs");
    visit("json", self.json, "with --predict, one JSON object instead of a table");
    visit("svg", self.svg,
          "file for an image of the first microbatches of the best layout's step on each pipeline rank");
    visit("html", self.html,
          "file for a page with where the time of its ranks goes, their passes and their memory; with --predict of the "
          "configuration's own layout");
    visit("scale", self.scale,
          "numbers of ranks: a table of the best layout of each, and which is best, instead of all this; `plan scale` "
          "has 1, 2, 4, ... up to --world_size",
          between(1, kMaxRanks));
    visit("weak", self.weak, "in that table the batch grows with the ranks, from that of the first");
    visit("device_hours", self.failures.device_hours, "mean time between failures of one device; 0 = not looked at",
          at_least(0));
    visit("save_seconds", self.failures.save_seconds, "that a training waits for a checkpoint; 0 = as predicted",
          between(0, 1e9));
    visit("restart_seconds", self.failures.restart_seconds, "from a failure to the first new step", between(0, 1e9));
    visit("tokens", self.deadline.tokens, "to train on: how long that takes, and how many device hours",
          between(0, 1e18));
    visit("deadline_hours", self.deadline.hours,
          "the time that they have: the fewest devices that are in time, of all or of those of --scale",
          between(0, 1e9));
    visit("price", self.deadline.price, "of an hour of a device", between(0, 1e9));
    visit("from_run", self.from_run,
          "folder of a run, or its metrics.jsonl: what it took beside what is predicted, and all else for hardware as "
          "fast as it was");
    visit("emit_hardware", self.emit_hardware,
          "with --from_run, a new file for the hardware as the run found it, which --hardware takes");
    visit("emit", self.emit, "file for the whole configuration with the best layout, which pretrain takes");
  }
};

/// Returns the default candidates of `plan scale`: 1, 2, 4, ... and `max_world_size`.
std::vector<i64> powers_of_two_up_to(i64 max_world_size);
/// Returns the option that the first word after `plan` seems to ask for; "" if it is a configuration.
std::string find_hint(std::span<const std::string> words);

/// Throws BadInput with every inconsistency of the options.
void check_options(const PlanOptions& options);

}  // namespace mcpp
