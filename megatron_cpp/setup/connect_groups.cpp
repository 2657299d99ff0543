#include "megatron_cpp/setup/connect_groups.h"

#include "comm/connect_collectives.h"

namespace mcpp {

void connect_groups(const ParallelState& parallel, Device& device) {
  for (const auto& [name, group, use] : parallel.groups()) {
    if (use != StepUse::None) connect_collectives(*group, device, /*at_a_time=*/use == StepUse::AtATime);
  }
}

}  // namespace mcpp
