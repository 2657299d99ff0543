#include "megatron_cpp/initialize.h"

#include <sched.h>

#include <algorithm>
#include <span>
#include <sstream>
#include <thread>

#include "base/checksum.h"
#include "checkpoint/exchange.h"
#include "megatron_cpp/layout.h"
#include "megatron_cpp/version.h"
#include "tensor/cpu/isa.h"
#include "tensor/kernels.h"

namespace mcpp {
namespace {

/// Cores that this process may run on.
int usable_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (::sched_getaffinity(0, sizeof(cores), &cores) != 0) return 1;
  return std::max(1, CPU_COUNT(&cores));
}

/// A rank that its launcher bound to some cores takes these; otherwise the ranks of a machine share all of them.
int default_threads(int ranks_here) {
  const int cores = usable_cores(), machine = static_cast<int>(std::thread::hardware_concurrency());
  return cores < machine ? cores : std::max(1, cores / ranks_here);
}

/// ": lr = 1 here, lr = 2 there" for the first line that differs.
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
  const auto check_same = [&](const char* what, const std::string& mine, const char* remedy) {
    const std::vector<std::string> all = all_gather_text(mine, world);
    for (std::size_t rank = 1; rank < all.size(); ++rank) {
      check_input(all[rank] == all[0], "rank ", rank, " has another ", what, " than rank 0",
                  first_difference(all[0], all[rank]), "; ", remedy);
    }
  };
  const std::string program = read_text_file("/proc/self/exe");
  check_same("program", version_text() + checksum_hex(std::as_bytes(std::span(program))),
             "install the same build on every machine");
  check_same("configuration", print_config(config), "give every rank the same file and arguments");
  check_same("instruction set", cpu_isa_name(), "set device.cpu_isa to the lowest of them");
}

}  // namespace

Session initialize(const Config& config, Communicator& world) {
  const DeviceConfig& device = config.device;
  check_input(
      device.device == DeviceType::Cpu || kWithCuda,
      "device.device: this program was built without CUDA; use \"cpu\", or build where the CUDA toolkit is installed");
  check_layout(config, world.size());
  limit_cpu_isa(device.cpu_isa);
  check_same_everywhere(config, world);
  const int threads = device.num_threads > 0 ? static_cast<int>(device.num_threads) : default_threads(world.size());
  return {.device = std::make_unique<CpuDevice>(CpuOptions{.threads = threads}),
          .parallel = make_parallel_state(world, parallel_sizes(config), output_rank(config))};
}

}  // namespace mcpp
