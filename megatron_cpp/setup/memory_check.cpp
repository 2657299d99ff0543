#include "megatron_cpp/setup/memory_check.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <vector>

#include "base/io/file_system.h"
#include "base/io/scratch_file.h"
#include "base/machine.h"
#include "base/number_format.h"
#include "comm/object_collectives.h"
#include "megatron_cpp/config/layout.h"
#include "megatron_cpp/setup/model_provider.h"
#include "megatron_cpp/setup/run_summary.h"
#include "model/flops.h"

namespace mcpp {
namespace {

/// Fraction of the estimate that is certainly needed: estimates are up to 10 % too high (docs/memory.md).
constexpr double kGuaranteedFraction = 0.9;

/// Returns true if local checkpoints are in memory, as in /dev/shm.
bool saves_to_memory(const CheckpointConfig& config) {
  return !config.local_save.empty() && is_memory_backed(nearest_existing(config.local_save));
}

/// Names the settings that would lower what this configuration needs.
std::string training_advice(const Config& config) {
  const TrainingConfig& training = config.training;
  std::string text;
  if (training.micro_batch_size > 1) text += "a smaller training.micro_batch_size, ";
  if (training.recompute_granularity != RecomputeGranularity::Full)
    text += "training.recompute_granularity = \"full\", ";
  if (training.precision == Precision::Fp32) text += "training.precision = \"bf16\", ";
  if (config.parallel.zero_stage < 3) text += "a higher parallel.zero_stage, ";
  if (config.optimizer.offload != OffloadTier::File)
    text += "optimizer.offload = \"file\" (its state on a disk, optimizer.offload_folder), ";
  if (training.offload_activations != OffloadTier::File) text += "training.offload_activations = \"file\", ";
  if (saves_to_memory(config.checkpoint)) text += "a checkpoint.local_save on a disk, ";
  return text + "more ranks on more nodes, or a smaller model need less";
}

/// Memory limit and the total demand of the ranks subject to it.
struct Demand {
  std::string name;
  double limit = 0, bytes = 0;
  int ranks = 0;
};

/// Returns the demands by limit id. Each rank contributes a line for itself and one for each limit that it sees.
std::map<std::string, Demand> collect_demands(double bytes, const std::vector<MemoryLimit>& limits,
                                              Communicator& ranks) {
  std::string local = fixed(bytes, 0);
  for (const MemoryLimit& limit : limits) local += str("\n", limit.id, "\t", limit.name, "\t", limit.bytes);
  std::map<std::string, Demand> demands;
  for (const std::string& text : all_gather_strings(local, ranks)) {
    const std::vector<std::string> lines = split(text, '\n');
    for (std::size_t i = 1; i < lines.size(); ++i) {
      const std::vector<std::string> parts = split(lines[i], '\t');
      Demand& demand = demands[parts[0]];
      demand.name = parts[1];
      demand.limit = std::stod(parts[2]);
      demand.bytes += std::stod(lines[0]);
      demand.ranks += 1;
    }
  }
  return demands;
}

/// Returns the host memory of a CPU rank, including what is offloaded to host memory.
double host_bytes(const Config& config, const MemoryEstimate& rank, int cores_per_rank) {
  return rank.total() + attention_scratch_bytes(config, cores_per_rank) +
         (config.optimizer.offload == OffloadTier::Host ? rank.offloaded : 0) +
         (config.optimizer.offload_params == OffloadTier::Host ? rank.offloaded_params : 0) +
         (config.training.offload_activations == OffloadTier::Host ? rank.offloaded_activations : 0);
}

/// Returns the disk space that a rank reserves.
double disk_bytes(const Config& config, const MemoryEstimate& rank) {
  const double copies = config.checkpoint.async_save ? 2 : 1;  // a snapshot is the second one
  return (config.optimizer.offload == OffloadTier::File ? copies * rank.offloaded : 0) +
         (config.optimizer.offload_params == OffloadTier::File ? copies * rank.offloaded_params : 0) +
         static_cast<double>(rank.activations_on_disk);
}

std::size_t stage_of_this_rank(const Config& config, const Communicator& ranks) {
  const Topology topology(ranks.size(), layout_of(config, ranks.size()));
  return static_cast<std::size_t>(topology.dense().coordinates(ranks.rank()).pp);
}

MemoryEstimate estimate_this_rank(const Config& config, const Communicator& ranks) {
  return estimate_memory_by_stage(config, ranks.size())[stage_of_this_rank(config, ranks)];
}

/// Returns the bytes of this rank's part of a local checkpoint.
double local_part_bytes(const Config& config, const Communicator& ranks) {
  return local_part_bytes_by_stage(config, ranks.size())[stage_of_this_rank(config, ranks)];
}

/// Returns the host memory for local checkpoints: those in memory, and the buffers of transfers.
double local_memory_bytes(const Config& config, const Communicator& ranks) {
  const CheckpointConfig& checkpoint = config.checkpoint;
  if (checkpoint.local_save.empty()) return 0;
  const i64 buffers = checkpoint.local_replicas > 0 ? 1 + checkpoint.local_replicas : 0,
            kept = saves_to_memory(checkpoint) ? max_local_parts(checkpoint) : 0;
  return static_cast<double>(buffers + kept) * local_part_bytes(config, ranks);
}

/// Returns the size of the files in a folder and its subfolders; 0 if the folder does not exist.
i64 folder_bytes(const Path& folder) {
  i64 sum = 0;
  std::error_code error;  // files may disappear: other ranks remove what ended processes left
  for (std::filesystem::recursive_directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;
    if (entry->is_regular_file(ignored)) sum += static_cast<i64>(entry->file_size(ignored));
  }
  return sum;
}

std::string demand_text(const Demand& demand) {
  return str(demand.ranks > 1 ? str(demand.ranks, " ranks need ") : "it needs ", human_bytes(demand.bytes),
             " by estimate, but ", demand.name, " is ", human_bytes(demand.limit));
}

double largest_rank(const Config& config, int world_size) {
  double largest = 0;
  for (const MemoryEstimate& rank : estimate_memory_by_stage(config, world_size))
    largest = std::max(largest, host_bytes(config, rank, /*cores_per_rank=*/0));
  return largest;
}

}  // namespace

void check_memory(double bytes, Communicator& ranks, const std::string& what, const std::string& advice,
                  double min_fraction) {
  for (const auto& [id, demand] : collect_demands(bytes, memory_limits(), ranks)) {
    if (min_fraction * demand.bytes <= demand.limit) continue;
    fail(ExitCode::OutOfMemory, "not enough memory for ", what, ": ", demand_text(demand), "; ", advice);
  }
}

void check_training_memory(const Config& config, const World& world) {
  if (config.device.device != DeviceType::Cpu) return;
  const Config on_nodes = with_dispatch_nodes(config, world.ranks_of_node().size());
  const double planned = host_bytes(on_nodes, estimate_this_rank(on_nodes, world.ranks), world.cores_per_rank) +
                         local_memory_bytes(config, world.ranks);
  check_memory(planned, world.ranks, config.stage ? config.stage->title() : "this run", training_advice(config),
               kGuaranteedFraction);
}

void check_training_disk(const Config& config, Communicator& ranks) {
  if (!config.offloads_to_disk()) return;
  constexpr std::string_view kKey = "optimizer.offload_folder";
  const std::string& folder = config.optimizer.offload_folder;
  const DiskSpace space = scratch_disk_space(folder, kKey);
  const MemoryLimit limit{.id = space.id, .name = "the free space of its disk", .bytes = space.bytes};
  const double planned = disk_bytes(config, estimate_this_rank(config, ranks));
  for (const auto& [id, demand] : collect_demands(planned, {limit}, ranks)) {
    check_input(kGuaranteedFraction * demand.bytes <= demand.limit, kKey, ": ", folder,
                ": not enough space for this run: ", demand_text(demand), "; free some, or use a different disk");
  }
}

void check_local_space(const Config& config, Communicator& ranks) {
  const CheckpointConfig& checkpoint = config.checkpoint;
  if (checkpoint.local_save.empty()) return;
  constexpr std::string_view kKey = "checkpoint.local_save";
  const bool is_in_memory = saves_to_memory(checkpoint);
  run_on_all_ranks(ranks, [&] {
    check_input(!is_in_memory || checkpoint.local_keep_latest_k > 0, kKey, ": ", checkpoint.local_save,
                " is in memory, which checkpoint.local_keep_latest_k = 0 (keep all) would fill; set a number to keep");
  });
  const Path existing = nearest_existing(checkpoint.local_save);
  const MemoryLimit limit{
      .id = file_system_id(existing),
      .name = is_in_memory ? "the free space of this file system in memory" : "the free space of its disk",
      .bytes = free_bytes(existing) + folder_bytes(checkpoint.local_save)};
  const double planned = static_cast<double>(max_local_parts(checkpoint)) * local_part_bytes(config, ranks);
  for (const auto& [id, demand] : collect_demands(planned, {limit}, ranks)) {
    check_input(kGuaranteedFraction * demand.bytes <= demand.limit, kKey, ": ", checkpoint.local_save,
                ": not enough space for local checkpoints: ", demand_text(demand), "; ",
                is_in_memory ? "make it larger (mount -o remount,size=...)" : "free some space",
                ", lower checkpoint.local_keep_latest_k or local_replicas, or use a different folder");
  }
  if (config.device.device != DeviceType::Cpu)  // on CPUs a part of check_training_memory()
    check_memory(local_memory_bytes(config, ranks), ranks, "local checkpoints",
                 "lower checkpoint.local_keep_latest_k or local_replicas, or set checkpoint.local_save to a disk",
                 kGuaranteedFraction);
}

std::string memory_warning(const Config& config, int world_size) {
  if (config.device.device != DeviceType::Cpu) return "";
  const double planned = largest_rank(config, world_size);
  for (const MemoryLimit& limit : memory_limits()) {
    if (kGuaranteedFraction * planned <= static_cast<double>(limit.bytes)) continue;
    return str(config.stage ? config.stage->title() + ": " : "", "one rank needs ", human_bytes(planned), ", but ",
               limit.name, " is ", human_bytes(static_cast<double>(limit.bytes)),
               ", so the run does not fit on hosts like this one; ", training_advice(config));
  }
  return "";
}

double weight_bytes(const Config& config) {
  const ParameterCounts counts = count_parameters(config.model);
  const Layout& layout = config.parallel;
  const auto share = [](i64 weights, i64 ranks) { return static_cast<double>(weights) / static_cast<double>(ranks); };
  const double weights =
      share(counts.total() - counts.experts, layout.tp) + share(counts.experts, layout.exchange_group().ranks);
  return weights / static_cast<double>(layout.pp) * static_cast<double>(size_of(dtype_of(config.training.precision)));
}

void check_weights_memory(const Config& config, Communicator& ranks, const std::string& what) {
  if (config.device.device != DeviceType::Cpu) return;
  std::string sizes = "--parallel.tensor_model_parallel_size, --parallel.pipeline_model_parallel_size";
  if (config.model.moe.num_experts > 0) sizes += ", --parallel.expert_model_parallel_size";
  check_memory(weight_bytes(config), ranks, what,
               str("hosts with more memory, ranks on more nodes that share the model (", sizes,
                   "), or a lower --precision can hold its weights"));
}

}  // namespace mcpp
