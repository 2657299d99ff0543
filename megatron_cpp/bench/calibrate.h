// Calibration of the planner for the machine that it runs on: creates a file of configs/hardware/.
#pragma once
#include "base/file.h"
#include "comm/communicator.h"
#include "megatron_cpp/bench/cold_matrices.h"
#include "plan/hardware/hardware.h"
#include "tensor/device.h"

namespace mcpp {

/// Measured sizes; smaller in tests.
struct CalibrationSizes {
  /// Sizes typical of models: they divide evenly among threads, and few are powers of two, whose rows would collide in
  /// the same cache lines.
  std::vector<i64> products{48, 128, 384, 768, 1536, 3072};
  i64 cold_bytes = kColdBytes;
  std::vector<i64> lengths{128, 512, 2048};
  std::vector<i64> widths{32, 64, 128};
  i64 tokens = 1024, width = 768;  ///< for elementwise operations
  i64 weights = 16 << 20;          ///< for the optimizer; exceeds caches
  i64 layer_weights = 2 << 20;     ///< weights per layer
  i64 message_bytes = 64 << 20;    ///< for collectives; exceeds caches, as weights and gradients do
  double seconds_each = 0.01;      ///< minimum duration of a measurement
  int rounds = 3;                  ///< repetitions of the whole calibration
  Path disk = {};                  ///< folder on the disk to be measured; empty = none
  i64 disk_bytes = 256 << 20;      ///< written and read by each rank
};

/// Measures the ranks of one machine with `cores` cores while they work concurrently: as many of them as the cores
/// suffice for; the others sleep. Collective. Each value is the median of several rounds, since other load on the
/// machine varies. Rank 0 returns the result; the others return an empty Hardware.
Hardware calibrate(Device& device, Communicator& ranks, int cores, const CalibrationSizes& sizes = {});

}  // namespace mcpp
