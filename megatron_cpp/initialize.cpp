#include "megatron_cpp/initialize.h"

#include <sched.h>

#include <algorithm>

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

}  // namespace

Session initialize(const DeviceConfig& config) {
  check_input(
      config.device == DeviceType::Cpu || kWithCuda,
      "device.device: this program was built without CUDA; use \"cpu\", or build where the CUDA toolkit is installed");
  limit_cpu_isa(config.cpu_isa);
  const int threads = config.num_threads > 0 ? static_cast<int>(config.num_threads) : usable_cores();
  Session session;
  session.device = std::make_unique<CpuDevice>(CpuOptions{.threads = threads});
  session.world = make_self_communicator();
  session.tp = session.world->split(0, 0);
  session.dp = session.world->split(0, 0);
  return session;
}

}  // namespace mcpp
