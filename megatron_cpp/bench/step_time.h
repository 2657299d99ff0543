// What a step of a training would take, without running one.
#pragma once
#include <string>

#include "megatron_cpp/config/config.h"
#include "tensor/device.h"

namespace mcpp {

/// Text for a plan: what a step takes at least at the rate that matrix products reach on `device` now, which is
/// measured, and about what trainings take.
std::string step_time(const Config& config, int world_size, Device& device);

}  // namespace mcpp
