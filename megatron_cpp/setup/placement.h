// Between the configuration of a run and the planner: what is to be laid out, how it is, and a found layout back.
#pragma once
#include "megatron_cpp/config/config.h"
#include "plan/cost/layout.h"

namespace mcpp {

/// The model, precision, largest global batch and optimizer of a configuration, and how long its documents are where
/// attention stays inside them and the datasets tell. BadInput when what they tell is damaged.
Workload workload_of(const Config& config);
/// Refuses, with BadInput, products in fp8 on devices that have none.
void check_fp8_rate(const Hardware& hardware, const Workload& work);
/// How it says that they are laid out. layout_problems() must have found none.
Layout layout_of(const Config& config, int world_size);
/// The same training with another layout: the keys of [parallel] that say how, micro_batch_size, recomputation, and
/// where the optimizer's states, weights and activations are.
Config with_layout(Config config, const Layout& layout);

}  // namespace mcpp
