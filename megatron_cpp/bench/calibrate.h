// Measures the machine that it runs on for the planner: a file of configs/hardware/ with what its ranks reach.
#pragma once
#include "base/file.h"
#include "comm/communicator.h"
#include "megatron_cpp/bench/cold_matrices.h"
#include "plan/hardware/hardware.h"
#include "tensor/device.h"

namespace mcpp {

/// Which sizes are measured: fewer in tests.
struct CalibrationSizes {
  /// As models have them: threads share them evenly, and few are powers of two, whose rows fall on the same lines of a
  /// cache.
  std::vector<i64> products{48, 128, 384, 768, 1536, 3072};
  i64 cold_bytes = kColdBytes;
  std::vector<i64> lengths{128, 512, 2048};
  std::vector<i64> widths{32, 64, 128};
  i64 tokens = 1024, width = 768;  ///< of what goes element by element
  i64 weights = 16 << 20;          ///< of the optimizer: more than caches hold
  i64 layer_weights = 2 << 20;     ///< of a layer
  i64 message_bytes = 64 << 20;    ///< of collectives: more than caches hold, as weights and gradients are
  double seconds_each = 0.01;      ///< at least, of one measurement
  int rounds = 3;                  ///< of all of them, one after another
  Path disk = {};                  ///< a folder on it; empty = none is measured
  i64 disk_bytes = 256 << 20;      ///< that each rank writes and reads
};

/// Called by all ranks of one machine, which has so many `cores`, each with its processor. Measures them at work side
/// by side: as many as there are cores for, while others sleep. Of each measurement counts the median of the rounds, as
/// what else a machine does comes and goes. What was found is rank 0's; the others get a Hardware with nothing in it.
Hardware calibrate(Device& device, Communicator& ranks, int cores, const CalibrationSizes& sizes = {});

}  // namespace mcpp
