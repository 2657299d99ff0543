// Peak rate of a device, the denominator of MFU (model FLOPs utilization).
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

/// File in checkpoint.save that stores a measured peak, so that a resumed run reports MFU relative to the same peak.
/// Does nothing if the folder is empty.
class PeakFile {
 public:
  /// `device` identifies the conditions of the measurement: processor, precision, threads and number of ranks that
  /// share it.
  PeakFile(const std::string& save_folder, std::string device);

  /// Returns the stored peak in TFLOP/s, or 0 if there is none or it belongs to a different device.
  double read() const;
  /// Stores `tflops`. Logs a failure instead of throwing.
  void write(double tflops, const Log& log) const;

 private:
  Path path_;
  std::string device_;
};

/// Returns the file for the run and the device of this rank.
PeakFile peak_file(const Config& config, const Session& session);

/// Returns the peak: logging.peak_tflops, else that of the data sheet of a known GPU, else the one stored with the run,
/// else the highest that any rank measures now, which is then stored. Collective.
DevicePeak find_device_peak(const Config& config, Session& session, const Log& log);

/// Returns a warning if `reached` TFLOP/s exceeds `peak`, else "".
std::string peak_warning(const DevicePeak& peak, double reached);

}  // namespace mcpp
