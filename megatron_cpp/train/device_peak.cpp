#include "megatron_cpp/train/device_peak.h"

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"
#include "base/number_format.h"
#include "megatron_cpp/setup/device_peaks.h"
#include "nn/offload/host_memory.h"
#include "parallel/reduce_scalar.h"
#include "tensor/processor.h"

namespace mcpp {

PeakFile::PeakFile(const std::string& save_folder, std::string device) : device_(std::move(device)) {
  if (!save_folder.empty()) path_ = Path(save_folder) / "measured_peak.json";
}

double PeakFile::read() const {
  std::error_code error;
  if (path_.empty() || !std::filesystem::exists(path_, error)) return 0;
  std::string text;
  try {
    text = read_text_file(path_);
  } catch (const Error&) {
    return 0;  // to be measured again
  }
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || json.value("device", nlohmann::json()) != device_) return 0;
  const nlohmann::json tflops = json.value("tflops", nlohmann::json());
  return tflops.is_number() && std::isfinite(tflops.get<double>()) && tflops > 0 ? tflops.get<double>() : 0;
}

void PeakFile::write(double tflops, const Log& log) const {
  if (path_.empty()) return;
  try {
    mcpp::create_directories(path_.parent_path());
    write_file_atomic(path_, nlohmann::ordered_json{{"device", device_}, {"tflops", tflops}}.dump() + "\n");
  } catch (const Error& error) {
    log.warn(str("the measured peak cannot be stored: ", error.what()));
  }
}

PeakFile peak_file(const Config& config, const Session& session) {
  Device& device = *session.device;
  return {config.checkpoint.save, str(device_name(device), ", ", enum_name(config.training.precision), ", ",
                                      host_threads(device), " threads, ", session.node->size(), " ranks on its host")};
}

DevicePeak find_device_peak(const Config& config, Session& session, const Log& log) {
  Device& device = *session.device;
  if (config.logging.peak_tflops > 0) return {config.logging.peak_tflops, DevicePeak::Source::Config};
  const DType dtype = dtype_of(config.training.precision);
  Communicator& world = session.parallel.world;
  CpuDevice host;  // the world communicator transfers tensors in host memory
  // Ranks may have different devices. Measuring is collective, so all ranks measure unless all devices are rated.
  const double rated = rated_flops(device_name(device), dtype, config.device.allow_tf32);
  const double is_unrated = rated > 0 ? 0 : 1;
  if (reduce_scalar(is_unrated, ReduceOp::Max, world, host) == 0) return {rated / 1e12, DevicePeak::Source::DataSheet};
  const bool is_first = world.rank() == 0;
  const PeakFile file = peak_file(config, session);
  const double stored = reduce_scalar(is_first ? file.read() : 0, ReduceOp::Max, world, host);
  double tflops = stored;
  if (stored == 0) {
    tflops = reduce_scalar(peak_flops(dtype, device) / 1e12, ReduceOp::Max, world, host);
    if (is_first) file.write(tflops, log);
  }
  device.trim();
  device.reset_peak();
  return {tflops, DevicePeak::Source::Measured};
}

std::string peak_warning(const DevicePeak& peak, double reached) {
  if (reached <= peak.tflops) return "";
  const std::string above = str("steps reach ", fixed(reached, 3), " TFLOP/s on a device, above ");
  switch (peak.source) {
    case DevicePeak::Source::Config:
      return str(above, "logging.peak_tflops = ", fixed(peak.tflops, 3), ": MFU is above 100 %; set it higher");
    case DevicePeak::Source::DataSheet:
      return str(above, "the ", fixed(peak.tflops, 3),
                 " of its data sheet: MFU is above 100 %; set logging.peak_tflops");
    default:
      return str(above, "the measured peak of ", fixed(peak.tflops, 3),
                 ", probably because of other load: from now on MFU is relative to the faster steps, and earlier MFU "
                 "values were too high; set logging.peak_tflops to fix the peak");
  }
}

}  // namespace mcpp
