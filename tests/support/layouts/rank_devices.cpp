#include "tests/support/layouts/rank_devices.h"

#include <cstdlib>
#include <limits>
#include <string_view>

#include "comm/nccl.h"
#include "tensor/on_device.h"
#include "tests/support/gpu.h"

namespace mcpp::test {

RankDevices make_nccl_devices([[maybe_unused]] Communicator& ranks) {
  std::unique_ptr<Device> gpu = make_gpu(ranks.rank());
  if constexpr (kWithCuda) {
    auto world = make_nccl_communicator(ranks.split(0, ranks.rank()), *gpu);
    return {std::move(gpu), std::move(world)};
  }
  return {};
}

bool runs_on_gpus() {
  static const char* const device = std::getenv("MCPP_TEST_DEVICE");
  return device && std::string_view(device) == "cuda";
}

RankDevices make_default_devices(Communicator& ranks) {
  return runs_on_gpus() ? make_nccl_devices(ranks) : make_cpu_devices(ranks);
}

i64 max_steps() {
  static const char* const steps = std::getenv("MCPP_TEST_MAX_STEPS");
  return steps ? std::strtoll(steps, nullptr, 10) : std::numeric_limits<i64>::max();
}

}  // namespace mcpp::test
