#include "megatron_cpp/setup/connect_groups.h"

#include "comm/connect_collectives.h"

namespace mcpp {

void connect_groups(const ParallelState& parallel, Device& device) {
  for (const auto& [name, group, use] : parallel.groups()) {
    if (use != CollectiveUse::None)
      connect_collectives(*group, device, /*connects_second_lane=*/use == CollectiveUse::Overlapped);
  }
}

}  // namespace mcpp
