#include "comm/local.h"
#include "comm/nccl.h"
#include "comm/staged.h"
#include "tensor/on_device.h"
#include "tests/comm/backend.h"
#include "tests/comm/host_only.h"
#include "tests/support/gpu.h"

namespace mcpp::test {
namespace {

/// Returns a backend of n ranks, each with a device whose memory the group cannot access directly.
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

/// NCCL needs one GPU per rank and chooses the order of sums, so hosts with a GPU test one rank only: its communicator,
/// streams and events, and the calls that do some work even for one rank. Simulated GPUs support several ranks, whose
/// sums are then in rank order (MCPP_SIMULATOR_RANK_ORDER).
void add_nccl(std::vector<Backend>& list) {
  if constexpr (kWithCuda) {
    for (const int n : {1, 2, 3, 4}) {
      if (n > 1 && !MCPP_CUDA_SIMULATOR) continue;
      const auto run = [n](const RankBody& body) {
        run_local_ranks(n, [&](Communicator& world, int rank) {
          const std::unique_ptr<Device> device = make_gpu(rank);
          const auto nccl = make_nccl_communicator(world.split(0, rank), *device);
          std::vector<int> peers;
          for (int peer = 0; peer < n; ++peer)
            if (peer != rank) peers.push_back(peer);
          nccl->connect(peers);
          body(*nccl, *device);
        });
      };
      list.push_back({on_device("nccl", DeviceType::Cuda) + str("_", n), run, why_no_gpu()});
    }
  }
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
    for (const DeviceType type : device_types())
      list.push_back(staged(
          on_device("staged", type) + "_", n, [type] { return make_device(type); }, why_missing(type)));
  }
  add_nccl(list);
  return list;
}

}  // namespace mcpp::test
