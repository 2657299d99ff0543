// Logs warnings when a device falls back to a slower implementation.
#pragma once
#include "base/log.h"
#include "tensor/device.h"

namespace mcpp {

/// Logs on rank 0 the warnings that are new since the last call, since all ranks fall back together. Does nothing on a
/// CPU.
void log_device_warnings(Device& device, const Log& log);

}  // namespace mcpp
