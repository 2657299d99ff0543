#include "megatron_cpp/config/sections/fault_injection_config.h"

namespace mcpp {

std::vector<std::string> FaultInjectionConfig::conflicts() const {
  std::vector<std::string> found;
  if (point != FaultPlace::Step && !ends_process(kind)) {
    found.push_back("fault_injection.point: is for the kinds error, exit, kill and hang");
  }
  if (kind == FaultKind::Spike && rank != -1) {
    found.push_back("fault_injection.rank: a spike is one of the whole batch; leave it out");
  }
  return found;
}

}  // namespace mcpp
