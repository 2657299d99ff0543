// Early checks that a command fits in memory and on disk, before anything is allocated: otherwise the system kills the
// process without a message.
#pragma once
#include <span>
#include <string>

#include "comm/communicator.h"
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/setup/initialize.h"

namespace mcpp {

/// Throws OutOfMemory on all ranks if the ranks that share a host or a memory-limited control group together need
/// more than it has. Collective. `bytes` is the estimated need of this rank, of which the fraction `certain` is needed
/// at least; swap space counts as memory. `what` completes "not enough memory for ..." in the message, and `advice`
/// names settings that need less.
void check_memory(double bytes, Communicator& ranks, const std::string& what, const std::string& advice,
                  double certain = 1);

/// Checks the estimated memory of train() on each rank with check_memory(). Does not check training on GPUs.
void check_training_memory(const Config& config, const World& world);

/// Throws BadInput on all ranks if the estimated files of train() in optimizer.offload_folder cannot be created
/// or exceed the free space of the disk shared by the ranks of a node. Creates nothing. Collective.
void check_training_disk(const Config& config, Communicator& ranks);

/// Returns a warning if even a single rank of the configuration would not fit on this host, otherwise "".
std::string memory_warning(const Config& config, int world_size);

/// Returns the bytes of weights per rank, averaged over pipeline ranks.
double weight_bytes(const Config& config);

/// Applies check_memory() to commands that only load the weights of a model. Collective.
void check_weights_memory(const Config& config, Communicator& ranks, const std::string& what);

}  // namespace mcpp
