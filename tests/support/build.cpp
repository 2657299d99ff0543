#include "tests/support/build.h"

#include <cstdlib>

#include "base/check.h"
#include "tensor/cuda_device.h"
#include "tensor/on_device.h"
#include "tests/support/gpu.h"

namespace mcpp::test {
namespace {

/// Returns a folder of the build, or its current location from the environment, for programs that run on a different
/// machine than the one that built them.
Path folder(const char* variable, const char* built) {
  const char* moved = std::getenv(variable);
  return moved && *moved ? moved : built;
}

}  // namespace

Path source_folder() {
  return folder("MCPP_SOURCE_DIR", MCPP_SOURCE_DIR);
}

Path golden_folder() {
  return folder("MCPP_GOLDEN_DIR", (source_folder() / "tests/golden").c_str());
}

Path binary_folder() {
  return folder("MCPP_BINARY_DIR", MCPP_BINARY_DIR);
}

bool built_with_cuda() {
  return kWithCuda;
}

std::string why_no_gpu() {
  if constexpr (kWithCuda) return cuda_device_count() > 0 ? "" : "this machine has no GPU that can be used";
  return "this program was built without CUDA";
}

std::unique_ptr<Device> make_gpu(int rank, const GpuOptions& options) {
  if constexpr (kWithCuda)
    return make_cuda_device({.ordinal = rank % cuda_device_count(), .deterministic = !options.any_order});
  fail(ExitCode::Internal, why_no_gpu());
}

std::string gemm_choices([[maybe_unused]] Device& device) {
  if constexpr (kWithCuda) return device.type() == DeviceType::Cuda ? gemm_choices_text(device) : "";
  return "";
}

}  // namespace mcpp::test
