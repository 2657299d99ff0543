// How a program that may or may not be built with CUDA gets at a CUDA device.
#pragma once
#include <memory>

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

}  // namespace mcpp
