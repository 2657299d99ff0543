// Peak rate of a device, which MFU is a share of.
#pragma once
#include "base/file.h"
#include "base/log.h"
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/setup/initialize.h"

namespace mcpp {

/// Highest rate of matrix products of one device.
struct DevicePeak {
  enum class Source { Config, DataSheet, Measured };
  double tflops = 0;
  Source source = Source::Measured;
};

/// File in checkpoint.save that stores a measured peak, so that a resumed run compares with the same one. Does nothing
/// without a folder.
class PeakFile {
 public:
  /// `device` describes what the peak was measured on: processor, precision, threads and ranks that share it.
  PeakFile(const std::string& save_folder, std::string device);

  /// Returns the stored peak in TFLOP/s; 0 when there is none, or one of another device.
  double read() const;
  /// Stores `tflops`. A failure is logged, because no training should end by it.
  void write(double tflops, const Log& log) const;

 private:
  Path path_;
  std::string device_;
};

/// Returns the file for the run and the device of this rank.
PeakFile peak_file(const Config& config, const Session& session);

/// Returns the peak: logging.peak_tflops, else that of the data sheet of a known GPU, else the one stored with the run,
/// else the highest that any rank measures now, which is then stored. Called by all ranks.
DevicePeak find_device_peak(const Config& config, Session& session, const Log& log);

/// Returns a warning when steps reach `reached` TFLOP/s, more than `peak`; empty when they do not.
std::string peak_warning(const DevicePeak& peak, double reached);

}  // namespace mcpp
