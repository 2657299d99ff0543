// Conversion between the configuration of a run and the planner's workload and layout.
#pragma once
#include "megatron_cpp/config/config.h"
#include "plan/cost/layout.h"

namespace mcpp {

/// Returns the model, precision, largest global batch and optimizer of a configuration and, if attention is limited to
/// documents, their length according to the datasets' metadata. Throws BadInput if the metadata is damaged.
Workload make_workload(const Config& config);
/// Throws BadInput if the workload uses fp8 products on a device that does not support them.
void check_fp8_rate(const Hardware& hardware, const Workload& work);
/// Returns the layout of a configuration, for which layout_problems() must be empty.
Layout layout_from_config(const Config& config, int world_size);
/// Returns the configuration with a different layout: the keys of [parallel] that describe it, micro_batch_size,
/// recomputation, and the offloading of optimizer state, weights and activations.
Config apply_layout(Config config, const Layout& layout);

}  // namespace mcpp
