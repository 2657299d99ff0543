// How a program that may or may not be built with CUDA gets at a CUDA device.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/device.h"

namespace mcpp {

struct CudaOptions {
  int ordinal = 0;            ///< which of the GPUs that this process sees
  bool allow_tf32 = false;    ///< fp32 matrix products round their factors to 10 bits of fraction, and are faster
  bool time_gemms = false;    ///< products without a choice try several algorithms; else the library's first proposal
  bool deterministic = true;  ///< no kernel that may give other bits the next time
};

/// Defined only where the program is built with CUDA (kWithCuda). Throws BadInput, with what the driver says, when
/// there is no such GPU or it is older than the kernels were built for.
std::unique_ptr<Device> make_cuda_device(const CudaOptions& options);
/// GPUs that this process sees; 0 without a driver.
int cuda_device_count();
/// Where such a GPU is on the PCI bus, as "0000:3B:00.0"; "" when that cannot be told.
std::string cuda_pci_bus_id(int ordinal);

/// Tells GPUs apart, on all machines and whatever numbers processes have for them.
std::string cuda_device_id(Device& device);
/// Page-locks memory of the host until the result goes: copies to and from GPUs are quicker then, and write_bytes()
/// returns before it has read the memory.
std::shared_ptr<void> pin_host_memory(void* memory, i64 bytes);
/// Waits until everything queued on the compute stream is done.
void synchronize(Device& device);

/// What ops do in a slower way than the fastest, and why: sentences that were not handed out before.
std::vector<std::string> take_notices(Device& device);

// Matrix products: which algorithm is the fastest is found by timing at the first product of a kind, and may come out
// differently the next time. Choices that are kept make runs the same to the bit, and spare them the timing.

/// The choices in use, as tensor/gemm_choices.h writes them for this GPU and version of the library.
std::string gemm_choices_text(Device& device);
/// From now on products are computed as `texts` choose, an earlier text before a later one; those of another GPU or
/// version say nothing. BadInput, with `name` for the texts, when one is broken.
void use_gemm_choices(Device& device, std::span<const std::string> texts, std::string_view name);

}  // namespace mcpp
