#include "tensor/transfer.h"

#include "tensor/cuda/device.h"

namespace mcpp {

template <>
void Transfer<DeviceType::Cuda>::read(const Tensor& from, void* to) {
  CudaDevice& device = cuda(from);
  check_cuda(
      cudaMemcpyAsync(to, from.raw(), static_cast<std::size_t>(from.bytes()), cudaMemcpyDeviceToHost, device.stream()),
      "cudaMemcpyAsync");
  device.synchronize();
}

template <>
void Transfer<DeviceType::Cuda>::write(const void* from, Tensor& to) {
  CudaDevice& device = cuda(to);
  const cudaStream_t stream = device.stream();  // throws on threads that must not queue work now
  MCPP_CHECK(!device.is_recording(),
             "values of the host are written during the recording of a graph, which would repeat them; write them to a "
             "tensor before the recording");
  device.staging().write(from, to.raw(), to.bytes(), stream);
}

}  // namespace mcpp
