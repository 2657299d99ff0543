#include "megatron_cpp/initialize.h"

#include <sched.h>

#include <algorithm>
#include <span>
#include <sstream>

#include "base/checksum.h"
#include "checkpoint/exchange.h"
#include "comm/nccl.h"
#include "megatron_cpp/gemm_tuning.h"
#include "megatron_cpp/layout.h"
#include "megatron_cpp/version.h"
#include "tensor/cpu/isa.h"
#include "tensor/cuda_device.h"
#include "tensor/with_cuda.h"

namespace mcpp {
namespace {

/// Cores that this process may run on.
int usable_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (::sched_getaffinity(0, sizeof(cores), &cores) != 0) return 1;
  return std::max(1, CPU_COUNT(&cores));
}

/// " (lr = 1 on rank 0, lr = 2 there)" for the first line that differs.
std::string first_difference(const std::string& here, const std::string& there) {
  std::istringstream a(here), b(there);
  std::string line_a, line_b;
  while (std::getline(a, line_a) && std::getline(b, line_b)) {
    if (line_a != line_b) return str(" (", line_a, " on rank 0, ", line_b, " there)");
  }
  return "";
}

/// Ranks with another configuration, or another program, would train another model, or wait for one another for ever.
void check_same_everywhere(const Config& config, Communicator& world) {
  if (world.size() == 1) return;
  const std::string program = read_text_file("/proc/self/exe");
  check_same_on_ranks("program", version_text() + checksum_hex(std::as_bytes(std::span(program))), world,
                      "install the same build on every machine");
  check_same_on_ranks("configuration", print_config(config), world, "give every rank the same file and arguments");
  check_same_on_ranks("instruction set", cpu_isa_name(), world, "set device.cpu_isa to the lowest of them");
}

std::unique_ptr<Device> make_device(const DeviceConfig& config, const World& world) {
  if constexpr (kWithCuda) {
    if (config.device == DeviceType::Cuda)
      return make_cuda_device({.ordinal = world.rank_on_node,
                               .allow_tf32 = config.allow_tf32,
                               .time_gemms = config.gemm_tuning == GemmTuning::Time,
                               .deterministic = config.deterministic});
  }
  const int cores = world.cores_per_rank > 0 ? world.cores_per_rank : usable_cores();
  const CpuOptions options{.threads = config.num_threads > 0 ? static_cast<int>(config.num_threads) : cores,
                           .shared = world.ranks.size() > 1};
  return std::make_unique<CpuDevice>(options);
}

std::unique_ptr<Communicator> connect_gpus(Device& device, Communicator& ranks) {
  if constexpr (kWithCuda) {
    if (device.type() == DeviceType::Cuda && ranks.size() > 1)
      return make_nccl_communicator(ranks.split(0, ranks.rank()), device);
  }
  return nullptr;
}

}  // namespace

void check_same_on_ranks(const char* what, const std::string& mine, Communicator& world, const char* remedy) {
  if (world.size() == 1) return;
  const std::vector<std::string> all = all_gather_text(mine, world);
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    check_input(all[rank] == all[0], "rank ", rank, " has another ", what, " than rank 0",
                first_difference(all[0], all[rank]), "; ", remedy);
  }
}

Session initialize(const Config& config, const World& world) {
  Communicator& ranks = world.ranks;
  const DeviceConfig& device = config.device;
  check_input(
      device.device == DeviceType::Cpu || kWithCuda,
      "device.device: this program was built without CUDA; use \"cpu\", or build where the CUDA toolkit is installed");
  check_layout(config, ranks.size());
  limit_cpu_isa(device.cpu_isa);
  check_same_everywhere(config, ranks);
  std::unique_ptr<Device> processor = make_device(device, world);
  load_gemm_choices(device, *processor, ranks);
  std::unique_ptr<Communicator> gpus = connect_gpus(*processor, ranks);
  ParallelState parallel = make_parallel_state(gpus ? *gpus : ranks, parallel_sizes(config), output_rank(config));
  return {.device = std::move(processor), .gpus = std::move(gpus), .parallel = std::move(parallel)};
}

}  // namespace mcpp
