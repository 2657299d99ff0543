// The first operations of a group of GPUs.
#pragma once
#include "comm/communicator.h"

namespace mcpp {

/// Groups of GPUs connect at their first operations, which waits for their hosts and may wait for what runs on the
/// GPUs: called where nothing does that waits for other ranks, no later operation has to connect. at_a_time: nor one
/// that begins while others of another kind are under way (LaneChoice). Called by all ranks of the group.
void connect_collectives(Communicator& group, Device& device, bool at_a_time);

}  // namespace mcpp
