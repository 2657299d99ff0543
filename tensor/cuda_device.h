// Access to CUDA devices for programs that may be built without CUDA.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/device.h"

namespace mcpp {

struct CudaOptions {
  int ordinal = 0;            ///< index among the GPUs visible to this process
  bool allow_tf32 = false;    ///< rounds the fp32 factors of GEMMs to 10 fraction bits, which is faster
  bool time_gemms = false;    ///< times several algorithms for GEMMs without a recorded choice; otherwise takes the
                              ///< library's first proposal
  bool deterministic = true;  ///< excludes kernels whose results may differ between runs
};

/// Creates the device. Defined only if the program is built with CUDA (kWithCuda). Throws BadInput with the driver's
/// message if the GPU does not exist or is older than the kernels' target architecture.
std::unique_ptr<Device> make_cuda_device(const CudaOptions& options);
/// Return the versions of the libraries in use, such as "13.0" and "9.13.1".
std::string cuda_version();
std::string cudnn_version();
/// Returns the number of GPUs visible to this process; 0 without a driver.
int cuda_device_count();
/// Returns the PCI address of a GPU, "0000:3B:00.0", or "" if unknown.
std::string cuda_pci_bus_id(int ordinal);

/// Returns an id that is unique among the GPUs of all nodes, independent of the process's numbering.
std::string cuda_device_id(Device& device);
/// Page-locks host memory until the result is destroyed. Copies to and from GPUs are then faster, and write_bytes()
/// returns before it has read the memory.
std::shared_ptr<void> pin_host_memory(void* memory, i64 bytes);
/// Waits until all work queued on the compute stream is done.
void synchronize(Device& device);

/// Returns new warnings about ops that fall back to a slow kernel, with the reason. Each is returned once.
std::vector<std::string> take_notices(Device& device);

// GEMM tuning. The fastest algorithm for a kind of GEMM is found by timing its first call, and may differ
// between runs. Recorded choices make runs bitwise identical and avoid the timing.

/// Returns the choices in use, in the format of tensor/gemm_algo_cache.h for this GPU and library version.
std::string gemm_choices_text(Device& device);
/// Uses the choices in `texts` from now on; earlier texts take precedence. Choices of a different GPU or library
/// version are ignored. Throws BadInput, naming `name`, if a text is malformed.
void use_gemm_choices(Device& device, std::span<const std::string> texts, std::string_view name);

}  // namespace mcpp
