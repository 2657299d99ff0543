// Calibration of the planner for the host that it runs on: measures the values of a file in configs/hardware/.
#pragma once
#include <functional>

#include "base/file.h"
#include "comm/communicator.h"
#include "megatron_cpp/bench/bench.h"
#include "plan/hardware/hardware.h"
#include "tensor/device.h"

namespace mcpp {

/// Problem sizes of calibrate(). Tests use smaller sizes.
struct CalibrationSizes {
  /// Matrix sizes that are typical of models. They divide evenly among threads. Few are powers of two, whose rows would
  /// map to the same cache lines.
  std::vector<i64> gemms{48, 128, 384, 768, 1536, 3072};
  i64 cold_bytes = kColdBytes;
  std::vector<i64> lengths{128, 512, 2048};
  std::vector<i64> widths{32, 64, 128};
  i64 tokens = 1024, width = 768;  ///< sizes of elementwise operations
  i64 weights = 16 << 20;          ///< weights of the optimizer step; larger than all caches
  i64 layer_weights = 2 << 20;     ///< weights per layer
  i64 message_bytes = 64 << 20;    ///< bytes of a collective; larger than all caches, like weights and gradients
  double min_seconds = 0.01;       ///< minimum duration of a measurement
  int rounds = 3;                  ///< repetitions of the complete calibration
  Path disk = {};                  ///< folder on the disk to be measured; empty = none
  i64 disk_bytes = 256 << 20;      ///< written and read by each rank
};

/// Measures one host with `cores` cores. At most one rank per core works at a time while the other ranks sleep. Each
/// value is the median of several rounds, since other load on the host varies. Collective. Rank 0 returns the result;
/// other ranks return an empty Hardware.
Hardware calibrate(Device& device, Communicator& ranks, int cores, const CalibrationSizes& sizes = {});

// Measurement of kernel speeds for the planner (plan/hardware/hardware.h).

/// Timer for functions that all ranks call concurrently.
class CalibrationClock {
 public:
  CalibrationClock(Device& device, Communicator& ranks, double min_seconds)
      : device_(device), ranks_(ranks), min_seconds_(min_seconds) {}

  Device& device() const { return device_; }
  Communicator& ranks() const { return ranks_; }
  /// Returns the seconds per call, averaged over ranks, while all ranks call f. Excludes the first call, which touches
  /// the pages of results.
  double measure_seconds(const std::function<void()>& f);
  /// Returns measure_seconds() for functions whose memory has already been touched. Counts the first call if it is
  /// long.
  double measure_warm_seconds(const std::function<void()>& f);
  /// Returns the median time of several calls of a collective function. All ranks make the same number of calls.
  double measure_collective_seconds(const std::function<void()>& f);
  /// Returns the relative standard deviation over ranks of all measurements of measure_seconds().
  double rank_spread();

 private:
  double mean_over_ranks(double value);

  Device& device_;
  Communicator& ranks_;
  double min_seconds_;
  double all_ = 0;  // sum over this rank's measurements
};

/// Measures each kernel once in one precision.
MeasuredRates measure_kernels(CalibrationClock& clock, DType dtype, const CalibrationSizes& sizes);

// Measurement of disk bandwidth for the planner.

/// Returns the bytes per second of each rank while all ranks write `bytes` to files in `folder` and read them back.
/// Bypasses the page cache if the file system supports it. Collective. Throws BadInput, naming `key`, if the folder is
/// unsuitable (ScratchFile).
double disk_bandwidth(CalibrationClock& clock, const Path& folder, i64 bytes, std::string_view key);

}  // namespace mcpp
