// The devices of tests, and the GPU that they may use. Programs built without CUDA have none, and no tests for it; on a
// machine without one, tests for it say that they are skipped, and why.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "tensor/device.h"
#include "tests/support/build.h"

namespace mcpp::test {

/// Empty where make_gpu() gives one.
std::string why_no_gpu();
struct GpuOptions {
  bool any_order = false;  ///< kernels may add up in another order the next time
};
/// A device of a GPU for one of several ranks, which share GPUs where there are fewer than ranks.
std::unique_ptr<Device> make_gpu(int rank = 0, const GpuOptions& options = {});

/// The types of device to test: a test of one that is not there is to be skipped, for why_missing().
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
/// `name` for the CPU, and for a GPU one that contains "cuda".
inline std::string on_device(const std::string& name, DeviceType type) {
  return type == DeviceType::Cuda ? name + "_cuda" : name;
}

}  // namespace mcpp::test
