// Peak rates of devices, from data sheets or measured: the denominator of MFU (model FLOPs utilization). Also times
// operations on random operands.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/log.h"
#include "megatron_cpp/setup/initialize.h"
#include "tensor/ops/ops.h"

namespace mcpp {

/// Returns the rate of dense GEMMs with fp32 accumulation in FLOP/s: on tensor cores for bf16, fp64, and fp32
/// with `allow_tf32`, otherwise without. `device_name` is the driver's name of the GPU. Returns 0 for unknown devices.
double rated_flops(std::string_view device_name, DType dtype, bool allow_tf32);

struct BenchTiming {
  int warmup = 1;
  int repeats = 5;
};

/// Returns uniform values in (-0.5, 0.5), but no zeros, which would make GEMMs faster. Large tensors repeat a block of
/// odd length, so that the rows of a matrix differ.
Tensor random_tensor(const Shape& shape, DType dtype, Device& device, u64 key);
/// Returns the median device seconds of one call of f. On a GPU each run consists of enough back-to-back calls to make
/// clock resolution and launch overhead negligible.
double median_seconds(const BenchTiming& timing, Device& device, const std::function<void()>& f);

/// GEMM of a training step: op(a) [m, k] times op(b) [k, n].
struct GemmCase {
  std::string name;  ///< such as "fc1 wgrad"
  i64 m = 0, n = 0, k = 0;
  ops::MatmulOptions options;
  bool is_output_fp32 = false;  ///< the output is an fp32 main gradient
  i64 count = 1;                ///< occurrences in one forward and backward pass of the model

  /// Return the shapes in which the operands are stored.
  Shape shape_of_a() const { return options.transpose_a ? Shape{k, m} : Shape{m, k}; }
  Shape shape_of_b() const { return options.transpose_b ? Shape{n, k} : Shape{k, n}; }
  DType output_type(DType dtype) const { return is_output_fp32 ? DType::F32 : dtype; }
  double flops() const { return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k); }
};

/// Returns the seconds per call of each run.
std::vector<double> gemm_runs(const GemmCase& gemm, DType dtype, Device& device, const BenchTiming& timing);

/// Measures the peak FLOP/s of large square GEMMs. Returns the best of several rounds, because other load can only slow
/// a round down. Ends when rounds no longer improve, after a few seconds at most. If many ranks share a core, uses
/// smaller GEMMs.
double peak_flops(DType dtype, Device& device);
/// Returns the reference for MFU in FLOP/s: the data sheet's rate of a known GPU, otherwise
/// peak_flops().
double mfu_peak_flops(DType dtype, bool allow_tf32, Device& device);
/// Returns mfu_peak_flops() for a program that reached `reached` FLOP/s. A measured peak below `reached` was disturbed
/// by other load, so it is measured again, and the result is at least `reached`.
double mfu_peak_flops(DType dtype, bool allow_tf32, Device& device, double reached);

/// Returns true if this rank of a node measures its device. If ranks share the `cores` of a node, only as many measure
/// as have cores of their own: others would only disturb the measurement and delay the start. With 0
/// cores, no other rank shares the cores of this process, so it measures.
bool measures_peak(int node_rank, int cores, Device& device);

/// Highest rate of GEMMs of one device.
struct DevicePeak {
  enum class Source { Config, DataSheet, Measured };
  double tflops = 0;
  Source source = Source::Measured;
};

/// File in checkpoint.save that stores a measured peak, so that MFU is relative to the same peak after a resume. Does
/// nothing if the folder is empty.
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

/// Returns the peak: logging.peak_tflops; else the data sheet value of a known GPU; else the peak stored with the run;
/// else the highest of the peaks that ranks measure now, which is then stored. Collective.
DevicePeak find_device_peak(const Config& config, Session& session, const Log& log);

/// Returns a warning if `reached` TFLOP/s exceeds `peak`, else "".
std::string peak_warning(const DevicePeak& peak, double reached);

}  // namespace mcpp
