#include "megatron_cpp/config/sections/fault_injection_config.h"

namespace mcpp {

std::vector<std::string> FaultInjectionConfig::conflicts() const {
  std::vector<std::string> errors;
  if (point != FaultPoint::Step && !ends_process(kind)) {
    errors.push_back("fault_injection.point: applies only to the kinds error, exit, kill and hang");
  }
  if (kind == FaultKind::Spike && rank != -1) {
    errors.push_back("fault_injection.rank: a spike affects the entire batch; remove it");
  }
  return errors;
}

}  // namespace mcpp
