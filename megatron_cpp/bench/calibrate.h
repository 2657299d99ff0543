// Measures the machine that it runs on for the planner: a file of configs/hardware/ with what its ranks reach.
#pragma once
#include "comm/communicator.h"
#include "plan/cost/hardware.h"
#include "tensor/device.h"

namespace mcpp {

/// Which sizes are measured: fewer in tests.
struct CalibrationSizes {
  std::vector<i64> products{40, 160, 640, 2560};  ///< no powers of two, whose rows fall on the same lines of a cache
  std::vector<i64> lengths{128, 512, 2048};
  std::vector<i64> widths{32, 64, 128};
  i64 tokens = 1024, width = 768;  ///< of what goes element by element
  i64 weights = 4 << 20;           ///< of the optimizer
  i64 message_bytes = 16 << 20;    ///< of collectives
  double seconds_each = 0.03;      ///< at least, of one measurement
};

/// Called by all ranks of one machine, each with its processor. Measures them at work side by side, the shortest of
/// several runs of the slowest rank; all get the same.
Hardware calibrate(Device& device, Communicator& ranks, const CalibrationSizes& sizes = {});

}  // namespace mcpp
