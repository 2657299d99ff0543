// How a program that may or may not be built with CUDA gets at a CUDA device.
#pragma once
#include <memory>
#include <string>

#include "base/file.h"
#include "tensor/device.h"

namespace mcpp {

struct CudaOptions {
  int ordinal = 0;  ///< which of the GPUs that this process sees
};

/// Defined only where the program is built with CUDA (kWithCuda). Throws BadInput, with what the driver says, when
/// there is no such GPU or it is older than the kernels were built for.
std::unique_ptr<Device> make_cuda_device(const CudaOptions& options);
/// GPUs that this process sees; 0 without a driver.
int cuda_device_count();

/// Tells GPUs apart, on all machines and whatever numbers processes have for them.
std::string cuda_device_id(Device& device);
/// Page-locks memory of the host until the result goes: copies to and from GPUs are quicker then, and write_bytes()
/// returns before it has read the memory.
std::shared_ptr<void> pin_host_memory(void* memory, i64 bytes);
/// Waits until everything queued on the compute stream is done.
void synchronize(Device& device);

// Matrix products: which algorithm is the fastest is found by timing at the first product of a kind, and may come out
// differently the next time. A file of choices makes runs the same to the bit, and spares them the timing.

/// Adds the choices of a file, unless they are of another GPU or library version. BadInput when it is no such file.
void load_gemm_choices(Device& device, const Path& path);
void save_gemm_choices(Device& device, const Path& path);
/// Off: products that have no choice yet take the library's first proposal, which is the same in every run.
void time_gemm_candidates(Device& device, bool timed);

}  // namespace mcpp
