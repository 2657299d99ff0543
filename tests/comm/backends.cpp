#include "comm/local.h"
#include "comm/staged.h"
#include "tensor/cuda_device.h"
#include "tensor/with_cuda.h"
#include "tests/comm/backend.h"
#include "tests/comm/host_only.h"

namespace mcpp::test {
namespace {

/// n ranks with a device each that their group does not reach.
template <class MakeDevice>
Backend staged(const std::string& name, int n, const MakeDevice& make_device, const std::string& missing) {
  const auto run = [n, make_device](const RankBody& body) {
    run_local_ranks(n, [&](Communicator& world, int rank) {
      const std::unique_ptr<Device> device = make_device();
      body(*make_staged_communicator(std::make_unique<HostOnly>(world.split(0, rank), *device), *device), *device);
    });
  };
  return {.name = str(name, n), .run = run, .missing = missing};
}

}  // namespace

std::vector<Backend> backends() {
  std::vector<Backend> list;
  list.push_back({"self", [](const RankBody& body) {
                    CpuDevice device;
                    body(*make_self_communicator(), device);
                  }});
  for (const int n : {1, 2, 3, 4, 8}) {
    list.push_back({str("local", n), [n](const RankBody& body) {
                      run_local_ranks(n, [&](Communicator& world, int) {
                        CpuDevice device;
                        body(world, device);
                      });
                    }});
  }
  for (const int n : {1, 3, 4}) {
    list.push_back(staged(
        "staged", n, [] { return std::unique_ptr<Device>(std::make_unique<CpuDevice>()); }, ""));
    if constexpr (kWithCuda)
      list.push_back(staged(
          "staged_cuda", n, [] { return make_cuda_device({}); }, cuda_device_count() > 0 ? "" : "no GPU"));
  }
  return list;
}

}  // namespace mcpp::test
