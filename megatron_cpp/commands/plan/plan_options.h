// Options of megatron_cpp plan.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "megatron_cpp/config/arguments.h"
#include "megatron_cpp/setup/initialize.h"
#include "megatron_cpp/setup/layout_search.h"
#include "plan/scaling/scaling.h"

namespace mcpp {

/// Upper limit for numbers of ranks: more than any links support, and small enough to avoid overflow.
inline constexpr double kMaxRanks = 1e6;

struct PlanOptions {
  std::string config;
  std::string stage;
  std::string hardware;
  std::string hardware_folder = "configs/hardware";
  i64 world_size = 0;
  i64 tp = 0, cp = 0, pp = 0, ep = 0, micro_batch_size = 0;
  double expert_imbalance = Workload().expert_imbalance;
  double document_tokens = 0;
  Objective objective = Objective::Time;
  Implementation implementation = Implementation::MegatronCpp;
  i64 keep = 5;
  double memory_reserve = kMemoryReserve;
  bool allow_lossy_comm = false, explain = false, predict = false, json = false;
  std::string emit, svg, html;
  std::vector<i64> scale;
  bool weak = false;
  Failures failures;
  bool goodput = false;
  Deadline deadline;
  std::string from_run, emit_hardware;

  /// Returns true if the minimum number of devices that meets the deadline is requested, without a list of candidates.
  bool should_minimize_devices() const {
    return scale.empty() && (objective == Objective::Deadline || deadline.hours > 0);
  }

  /// Calls visit() for the options about failures.
  template <class Self, class Visitor>
  static void failure_fields(Self& self, Visitor& visit) {
    visit("mtbf_hours", self.failures.mtbf_hours, "mean hours between failures of one device; 0 = none",
          between(0, 1e9));
    visit("save_seconds", self.failures.save_seconds, "seconds that a run waits for a checkpoint; 0 = as predicted",
          between(0, 1e9));
    visit("restart_seconds", self.failures.restart_seconds, "seconds from a failure to the first new step",
          between(0, 1e9));
    visit("goodput", self.goodput,
          "with --mtbf_hours: simulates random failures and shows the goodput by checkpoint interval, for checkpoints "
          "on disks and in the memory of two nodes");
  }

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("config", self.config, "configuration file in TOML, as for pretrain");
    visit("stage", self.stage, "name of the stage to plan, in a run with stages; empty = the first");
    visit("hardware", self.hardware, "cluster type: a file of the hardware folder without .toml, or any file");
    visit("hardware_folder", self.hardware_folder, "folder of cluster type files");
    visit("world_size", self.world_size, "number of ranks, one per device", between(1, kMaxRanks));
    visit("tp", self.tp, "only layouts with this tensor_model_parallel_size; 0 = any", between(0, 4096));
    visit("cp", self.cp, "only layouts with this context_parallel_size; 0 = any", between(0, 4096));
    visit("pp", self.pp, "only layouts with this pipeline_model_parallel_size; 0 = any", between(0, 4096));
    visit("ep", self.ep, "only layouts with this expert_model_parallel_size; 0 = any", between(0, 4096));
    visit("expert_imbalance", self.expert_imbalance,
          "tokens routed to the experts of the busiest rank, relative to the mean", between(1, 100));
    visit("document_tokens", self.document_tokens,
          "mean number of tokens per document, with data.reset_attention_mask; 0 = from the datasets' .json files, if "
          "they are accessible",
          between(0, 1e15));
    visit("micro_batch_size", self.micro_batch_size, "only layouts with this micro_batch_size; 0 = any",
          between(0, 4096));
    visit("objective", self.objective,
          "value to minimize: step time, memory of a device, device hours of a run over the "
          "world sizes in --scale, or the number of devices that train on --tokens in --deadline_hours");
    visit("implementation", self.implementation,
          "program to predict: this one, or Megatron Core of 2026 without overlap of data-parallel communication");
    visit("keep", self.keep, "number of best layouts to show", between(1, 100));
    visit("memory_reserve", self.memory_reserve,
          "fraction of a device's memory reserved for libraries, the driver and fragmentation",
          between_excluding_max(0, 1));
    visit("allow_lossy_comm", self.allow_lossy_comm,
          "also consider layouts that send weights or gradients with fewer bits than the configuration, which changes "
          "training results");
    visit("explain", self.explain, "also show the rule-of-thumb layout and the parts of the best layout's step time");
    visit("predict", self.predict, "only predict the step time and memory of the configuration's own layout");
    visit("json", self.json, "with --predict: print one JSON object instead of a table");
    visit("svg", self.svg,
          "file for an image of the first microbatches of the best layout's step on each pipeline rank");
    visit("html", self.html,
          "file for an HTML page with time breakdown, passes and memory of each rank, for the best layout or, with "
          "--predict, the configuration's own");
    visit("scale", self.scale,
          "numbers of ranks to compare: a table with the best layout for each; `plan scale` compares 1, 2, 4, ... up "
          "to --world_size",
          between(1, kMaxRanks));
    visit("weak", self.weak,
          "with --scale: weak scaling: the batch size grows with the number of ranks, from that of the configuration");
    failure_fields(self, visit);
    visit("tokens", self.deadline.tokens, "tokens to train on: predicts time and device hours of training",
          between(0, 1e18));
    visit("deadline_hours", self.deadline.hours,
          "time limit for --tokens: finds the smallest number of devices that meets it, among the numbers in --scale "
          "or, by default, all",
          between(0, 1e9));
    visit("price", self.deadline.price, "price per device hour", between(0, 1e9));
    visit("from_run", self.from_run,
          "folder of a run, or its metrics.jsonl: compares its speed with the prediction, and scales the hardware's "
          "rates to match it in all other predictions");
    visit("emit_hardware", self.emit_hardware, "with --from_run: new file for the adjusted hardware, for --hardware");
    visit("emit", self.emit, "file for the complete configuration with the best layout, for pretrain");
  }
};

/// Returns the default candidates of `plan scale`: 1, 2, 4, ... and `max_world_size`.
std::vector<i64> powers_of_two_up_to(i64 max_world_size);
/// Returns the option that the user probably meant by `words`, the words after `plan`; "" if the first word is a
/// configuration.
std::string find_hint(std::span<const std::string> words);

/// Throws BadInput that lists every inconsistency of the options.
void check_options(const PlanOptions& options);

// Command megatron_cpp plan; its subcommand `plan calibrate` runs on several ranks.

ExitCode plan_command(Arguments args, Log& log, const World& world);
ExitCode plan_calibrate_command(Arguments args, Log& log, const World& world);
/// Returns why `file`, the value of an option, cannot be written; empty if it can.
std::string output_problem(const std::string& option, const std::string& file);

}  // namespace mcpp
