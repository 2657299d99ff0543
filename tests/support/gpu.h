// Devices of tests, including an optional GPU. Programs built without CUDA have no GPU and no tests for it; on a
// host without a GPU, its tests are skipped with the reason.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "tensor/device.h"
#include "tests/support/build.h"

namespace mcpp::test {

/// Returns the reason why make_gpu() cannot return a GPU, or "" if it can.
std::string why_no_gpu();
struct GpuOptions {
  bool any_order = false;  ///< kernels may use a different summation order in each run
};
/// Returns a GPU device for one of several ranks, which share GPUs if there are fewer GPUs than ranks.
std::unique_ptr<Device> make_gpu(int rank = 0, const GpuOptions& options = {});

/// Returns the text of the GEMMs that the library has computed on a GPU (tensor/gemm_algo_cache.h); "" for a CPU.
std::string gemm_choices(Device& device);

/// Returns the device types to test. The tests of a missing device must be skipped with why_missing().
inline std::vector<DeviceType> device_types() {
  std::vector<DeviceType> types{DeviceType::Cpu};
  if (built_with_cuda()) types.push_back(DeviceType::Cuda);
  return types;
}
inline std::string why_missing(DeviceType type) {
  return type == DeviceType::Cuda ? why_no_gpu() : "";
}
inline std::unique_ptr<Device> make_device(DeviceType type, int cpu_threads = 1) {
  if (type == DeviceType::Cuda) return make_gpu();
  return std::make_unique<CpuDevice>(CpuOptions{.threads = cpu_threads});
}
inline std::string name_of(DeviceType type) {
  return type == DeviceType::Cuda ? "cuda" : "cpu";
}
/// Returns `name` for the CPU, and a name that contains "cuda" for a GPU.
inline std::string on_device(const std::string& name, DeviceType type) {
  return type == DeviceType::Cuda ? name + "_cuda" : name;
}

}  // namespace mcpp::test
