// Estimate of the step time without running a step.
#pragma once
#include <string>

#include "megatron_cpp/config/config.h"
#include "tensor/device.h"

namespace mcpp {

/// Describes, for a plan, the minimum and the typical time of a step at the measured rate of matrix products on
/// `device`.
std::string step_time(const Config& config, int world_size, Device& device);

}  // namespace mcpp
