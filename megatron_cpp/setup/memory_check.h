// Checks that a command fits in memory and on disk before it allocates anything. Without these checks, the system would
// kill the process without a message.
#pragma once
#include <span>
#include <string>

#include "comm/communicator.h"
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/setup/initialize.h"

namespace mcpp {

/// Throws OutOfMemory on all ranks if the ranks that share a host or a memory-limited control group together need more
/// memory than it has. Collective. `bytes` is the estimated need of this rank; at least the fraction `min_fraction` of
/// it is needed. Swap space counts as memory. `what` completes "not enough memory for ..." in the message, and `advice`
/// names settings that need less.
void check_memory(double bytes, Communicator& ranks, const std::string& what, const std::string& advice,
                  double min_fraction = 1);

/// Calls check_memory() with the estimated memory of train() on each rank. Does nothing for training on GPUs.
void check_training_memory(const Config& config, const World& world);

/// Throws BadInput on all ranks if the estimated files of train() in optimizer.offload_folder cannot be created
/// or exceed the free space of the disk shared by the ranks of a node. Creates nothing. Collective.
void check_training_disk(const Config& config, Communicator& ranks);

/// Throws BadInput on all ranks if the estimated local checkpoints of a run (checkpoint.local_save) exceed the free
/// space of the disk or memory that the ranks of a node share. The space of existing local checkpoints counts as free.
/// Throws OutOfMemory if the run uses GPUs and the host lacks memory for them; check_training_memory() checks this for
/// CPUs. Creates nothing. Collective.
void check_local_space(const Config& config, Communicator& ranks);

/// Returns a warning if even a single rank of the configuration does not fit on this host, otherwise "".
std::string memory_warning(const Config& config, int world_size);

/// Returns the bytes of weights per rank, averaged over pipeline ranks.
double weight_bytes(const Config& config);

/// Calls check_memory() for a command that only loads the weights of a model. Collective.
void check_weights_memory(const Config& config, Communicator& ranks, const std::string& what);

}  // namespace mcpp
