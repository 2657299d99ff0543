// What a device does in a slower way than the fastest, in the log.
#pragma once
#include "base/log.h"
#include "tensor/device.h"

namespace mcpp {

/// Warns of what is new since the last call, on rank 0: ranks compute alike. Nothing on a CPU.
void tell_notices(Device& device, const Log& log);

}  // namespace mcpp
