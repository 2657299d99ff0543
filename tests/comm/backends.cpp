#include "comm/local.h"
#include "tests/comm/backend.h"

namespace mcpp::test {

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
  return list;
}

}  // namespace mcpp::test
