#include "megatron_cpp/setup/initialize.h"

#include <unistd.h>

#include <algorithm>
#include <latch>
#include <map>
#include <numeric>
#include <span>
#include <sstream>
#include <system_error>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/checksum.h"
#include "base/strings.h"
#include "comm/connect_collectives.h"
#include "comm/metered.h"
#include "comm/nccl.h"
#include "comm/object_collectives.h"
#include "comm/staged.h"
#include "megatron_cpp/config/layout.h"
#include "megatron_cpp/setup/run_summary.h"
#include "megatron_cpp/setup/version.h"
#include "tensor/cuda_device.h"
#include "tensor/isa.h"
#include "tensor/on_device.h"
#include "tensor/ops/low_precision/fp8.h"
#include "tensor/ops/low_precision/recipe_support.h"

namespace mcpp {

void connect_groups(const ParallelState& parallel, Device& device) {
  for (const auto& [name, group, use] : parallel.groups()) {
    if (use != CollectiveUse::None)
      connect_collectives(*group, device, /*connects_second_lane=*/use == CollectiveUse::Overlapped);
  }
}

namespace {

/// Formats the first line that differs, such as " (lr = 1 on rank 0, lr = 2 on rank 3)".
std::string first_difference(const std::string& rank0_text, const std::string& other_text, std::size_t other_rank) {
  std::istringstream a(rank0_text), b(other_text);
  std::string line_a, line_b;
  while (std::getline(a, line_a) && std::getline(b, line_b)) {
    if (line_a != line_b) return str(" (", line_a, " on rank 0, ", line_b, " on rank ", other_rank, ")");
  }
  return "";
}

/// Ranks with a different configuration or program would train a different model or deadlock.
void check_ranks_agree(const Config& config, Communicator& world) {
  if (world.size() == 1) return;
  const std::string program = read_text_file("/proc/self/exe");
  check_identical_on_ranks("program", version_text() + checksum_hex(program), world,
                           "install the same build on every node");
  check_identical_on_ranks("configuration", print_config(config), world, "pass every rank the same file and arguments");
  check_identical_on_ranks("instruction set", cpu_isa_name(), world, "set device.cpu_isa to the lowest of them");
}

/// Throws BadInput if this process cannot start `count` threads; OpenMP would otherwise abort later without a clear
/// message.
void check_threads(int count) {
  std::vector<std::thread> threads;
  bool is_refused = false;
  std::latch done(1);
  try {
    for (int i = 1; i < count; ++i) threads.emplace_back([&done] { done.wait(); });
  } catch (const std::system_error&) {
    is_refused = true;
  }
  done.count_down();
  for (std::thread& thread : threads) thread.join();
  check_input(!is_refused, "device.num_threads: the system allows ", threads.size() + 1, " of the ", count,
              " threads of this rank: the limit of processes and threads is reached (`ulimit -u`, `ulimit -v`, or "
              "pids.max of the "
              "control group); raise it, or set device.num_threads lower");
}

std::unique_ptr<Device> make_device(const DeviceConfig& config, const World& world) {
  if constexpr (kWithCuda) {
    if (config.device == DeviceType::Cuda) {
      // If there are more ranks than GPUs, ranks share them.
      const int ordinal = world.ranks_of_node().rank() % std::max(1, cuda_device_count());
      // Pin to the CPUs near the GPU before the device creates its host threads and buffers. Respects the launcher's
      // binding.
      set_cpu_affinity(cpus_local_to_pci_device(cuda_pci_bus_id(ordinal)));
      return make_cuda_device({.ordinal = ordinal,
                               .allow_tf32 = config.allow_tf32,
                               .time_gemms = config.gemm_tuning == GemmTuning::Time,
                               .deterministic = config.deterministic});
    }
  }
  const int threads = num_rank_threads(config, world.cores_per_rank);
  check_threads(threads);
  return std::make_unique<CpuDevice>(CpuOptions{.threads = threads, .shared = world.ranks.size() > 1});
}

/// Returns true if NCCL can be used, which requires one rank per GPU. Identical on all ranks.
[[maybe_unused]] bool can_use_nccl(DistributedBackend backend, const std::string& gpu, Communicator& ranks) {
  if (backend == DistributedBackend::Mpi) return false;
  std::map<std::string, std::size_t> owners;
  const std::vector<std::string> gpus = all_gather_strings(gpu, ranks);
  for (std::size_t rank = 0; rank < gpus.size(); ++rank) {
    const auto [owner, is_new] = owners.try_emplace(gpus[rank], rank);
    check_input(is_new || backend == DistributedBackend::Auto, "parallel.distributed_backend: ranks ", owner->second,
                " and ", rank,
                " share a GPU, which \"nccl\" does not support; start fewer ranks, or use \"mpi\" or \"auto\"");
    if (!is_new) return false;
  }
  return true;
}

/// Creates a communicator of all ranks for tensors of the device; null if `ranks` can be used directly.
std::unique_ptr<Communicator> make_gpu_communicator([[maybe_unused]] const ParallelConfig& config, Device& device,
                                                    Communicator& ranks) {
  if (device.type() == DeviceType::Cpu) return nullptr;
  if (ranks.size() == 1) return make_self_communicator();  // MPI's would reject tensors of a GPU
  if constexpr (kWithCuda) {
    std::unique_ptr<Communicator> all = ranks.split(0, ranks.rank());
    if (can_use_nccl(config.distributed_backend, cuda_device_id(device), ranks))
      return make_nccl_communicator(std::move(all), device);
    return make_staged_communicator(std::move(all), device,
                                    {.pin = pin_host_memory, .finish = [&device] { synchronize(device); }});
  }
  return nullptr;
}

/// Wraps `gpus` so that the watchdog sees its operations.
std::unique_ptr<Communicator> with_flight_recorder(std::unique_ptr<Communicator> gpus, FlightRecorder* recorder) {
  if (!gpus || !recorder) return gpus;
  std::vector<int> ranks(static_cast<std::size_t>(gpus->size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return make_metered(std::move(gpus), std::make_shared<CommMeter>(), {*recorder, "world of GPUs", std::move(ranks)});
}

/// Throws BadInput if a recipe with scales of full tensors is used on a GPU without fp8. Block-scaled recipes are
/// emulated there.
void check_fp8(const TrainingConfig& config, const Device& device) {
  if (std::ranges::all_of(config.recipes(), has_blocks)) return;
  const std::string problem = ops::fp8_unsupported_reason(device);
  check_input(problem.empty(), config.fp8 != Fp8::None ? "training.fp8: " : "training.low_precision: ", problem,
              "; remove it");
}

/// A single rank on a CPU waits for nothing that could hang, and its steps may be arbitrarily slow.
HangTimeouts hang_limits(const Config& config, int ranks) {
  if (ranks == 1 && config.device.device == DeviceType::Cpu) return HangTimeouts::none();
  const ParallelConfig& p = config.parallel;
  return {.distributed = 60 * p.distributed_timeout_minutes, .step = 60 * p.step_timeout_minutes};
}

}  // namespace

void check_identical_on_ranks(const char* what, const std::string& local, Communicator& world, const char* remedy) {
  if (is_identical_on_ranks(local, world)) return;
  // Gather the long texts only on a mismatch, because the texts of thousands of ranks would fill memory.
  const std::vector<std::string> all = all_gather_strings(local, world);
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    check_input(all[rank] == all[0], "rank ", rank, " has a different ", what, " than rank 0",
                first_difference(all[0], all[rank], rank), "; ", remedy);
  }
}

Session initialize(const Config& config, const World& world) {
  Communicator& ranks = world.ranks;
  const DeviceConfig& device = config.device;
  std::unique_ptr<StatusBoard> board;
  std::unique_ptr<Watchdog> watchdog;
  if (world.recorder) {
    world.recorder->set_limits(hang_limits(config, ranks.size()));
    if (ranks.size() == 1 && device.device == DeviceType::Cuda) {
      board = std::make_unique<StatusBoard>(0);
      watchdog = std::make_unique<Watchdog>(*world.recorder, *board, [] {});
    }
  }
  check_input(
      device.device == DeviceType::Cpu || kWithCuda,
      "device.device: this program was built without CUDA; use \"cpu\", or build where the CUDA toolkit is installed");
  check_layout(config, ranks.size());
  limit_cpu_isa(device.cpu_isa);
  check_ranks_agree(config, ranks);
  std::unique_ptr<Device> compute_device = make_device(device, world);
  check_fp8(config.training, *compute_device);
  load_gemm_algos(device, *compute_device, ranks);
  std::unique_ptr<Communicator> gpus =
      with_flight_recorder(make_gpu_communicator(config.parallel, *compute_device, ranks), world.recorder);
  auto profiler = std::make_unique<Profiler>();
  const std::vector<int> nodes = config.parallel.dispatcher == TokenDispatcherType::Hierarchical
                                     ? nodes_of_ranks(ranks, world.ranks_of_node())
                                     : std::vector<int>();
  ParallelState parallel = make_parallel_state(gpus ? *gpus : ranks, layout_of(config, ranks.size()),
                                               config.model.moe.num_experts > 0, world.recorder, profiler.get(), nodes);
  for (const auto& [name, meter] : parallel.meters) {
    if (meter->ranks.size() > 1) meter->waits = make_device_wait_timer(*compute_device);
  }
  if (gpus) connect_groups(parallel, *compute_device);
  return {.board = std::move(board),
          .watchdog = std::move(watchdog),
          .device = std::move(compute_device),
          .profiler = std::move(profiler),
          .gpus = std::move(gpus),
          .parallel = std::move(parallel),
          .node = &world.ranks_of_node(),
          .recorder = world.recorder,
          .job = world.job,
          .cores = world.cores};
}

namespace {

std::string read_gemm_algos(const DeviceConfig& config) {
  const Path path = config.gemm_tuning_file;
  if (std::filesystem::exists(path)) return read_text_file(path);
  check_input(config.gemm_tuning == GemmTuning::Time, "device.gemm_tuning_file: ", path.string(), " does not exist",
              "; a run with device.gemm_tuning = \"time\" creates it");
  const Path folder = path.has_parent_path() ? path.parent_path() : Path(".");
  check_input(::access(folder.c_str(), W_OK) == 0, "device.gemm_tuning_file: cannot write to ", folder.string());
  return "";
}

}  // namespace

void load_gemm_algos(const DeviceConfig& config, Device& device, Communicator& ranks) {
  if (config.gemm_tuning_file.empty()) return;
  const std::vector<std::string> texts =
      run_on_all_ranks(ranks, [&] { return ranks.rank() == 0 ? read_gemm_algos(config) : std::string(); });
  if (texts[0].empty() || device.type() == DeviceType::Cpu) return;
  if constexpr (kWithCuda) use_gemm_choices(device, std::span(texts).first(1), config.gemm_tuning_file);
}

void sync_gemm_algos(const DeviceConfig& config, Device& device, Communicator& ranks) {
  if constexpr (kWithCuda) {
    if (config.gemm_tuning == GemmTuning::Off || device.type() == DeviceType::Cpu) return;
    const std::vector<std::string> choices = all_gather_strings(gemm_choices_text(device), ranks);
    use_gemm_choices(device, choices, "the choices of the ranks");
    if (ranks.rank() != 0) return;
    const Path path = config.gemm_tuning_file;
    const std::string text = gemm_choices_text(device);
    if (!std::filesystem::exists(path) || read_text_file(path) != text) write_file_atomic(path, text);
  }
}

void log_emulated_recipes(const TrainingConfig& config, const Device& device, const Log& log) {
  if (device.type() == DeviceType::Cpu) return;
  for (const GemmRecipe recipe : config.recipes()) {
    if (!has_blocks(recipe)) continue;
    const std::string reason = ops::recipe_emulation_reason(device, recipe);
    if (!reason.empty())
      log.info(str(enum_name(recipe),
                   " is emulated, which is slower than bf16: operands are rounded and multiplied in bf16, because ",
                   reason));
  }
}

void log_device_warnings([[maybe_unused]] Device& device, [[maybe_unused]] const Log& log) {
  if constexpr (kWithCuda) {
    if (device.type() != DeviceType::Cuda) return;
    for (const std::string& notice : take_notices(device)) log.warn(notice);
  }
}

}  // namespace mcpp
