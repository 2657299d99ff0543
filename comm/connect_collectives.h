// Eager connection setup of a group of GPUs.
#pragma once
#include "comm/communicator.h"

namespace mcpp {

/// Runs the first operations of `group`, which establish its connections. Collective. Connecting blocks the hosts and
/// may wait for running GPU work, so call this when no GPU work waits for other ranks; later operations then need no
/// setup. If `connects_second_lane`, also connects the second lane, which serves operations that overlap with
/// operations of a different kind (LaneSelector).
void connect_collectives(Communicator& group, Device& device, bool connects_second_lane);

}  // namespace mcpp
