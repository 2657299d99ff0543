// Whether what a command is about to hold fits into the memory of the machines, and on their disks: asked before
// anything is allocated, because where there is too little memory the system ends a process without a word.
#pragma once
#include <span>
#include <string>

#include "comm/communicator.h"
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/setup/world.h"

namespace mcpp {

/// Throws OutOfMemory on all ranks when those that share a machine, or a control group with a limit, need more together
/// than it has. `bytes`: what this rank will need by the estimate, of which the share `certain` is needed at least.
/// `what` ends the sentence "... for the training" of the message, and `advice` says what needs less. Called by all
/// ranks. Swap space counts as memory.
void check_memory(double bytes, Communicator& ranks, const std::string& what, const std::string& advice,
                  double certain = 1);

/// The same for what train() will hold on this rank, by the plan's estimate; of a training on GPUs nothing is known.
void check_training_memory(const Config& config, const World& world);

/// Throws BadInput on all ranks when what train() will keep in optimizer.offload_folder, by the plan's estimate, cannot
/// be there, or is more than the disk of the ranks of a machine has left. Makes nothing. Called by all ranks.
void check_training_disk(const Config& config, Communicator& ranks);

/// Of a plan for ranks that need not run here: says when not even one of them would fit on this machine; else "".
std::string memory_warning(const Config& config, int world_size);

/// Of the weights that a rank holds, on average over those of the pipeline.
double weight_bytes(const Config& config);

/// For commands that only load the weights of a model, by check_memory(). Called by all ranks.
void check_weights_memory(const Config& config, Communicator& ranks, const std::string& what);

}  // namespace mcpp
