// Construction of the CPU device: the part of Device that needs the libraries of this backend.
#include "tensor/device.h"

#include "base/check.h"
#include "tensor/cpu/gemm.h"

namespace mcpp {

CpuDevice::CpuDevice(CpuOptions options)
    : Device(DeviceType::Cpu), options_(options), gemm_cache_(new GemmCache, [](GemmCache* cache) { delete cache; }) {
  check_input(options_.threads >= 1, "the CPU device needs at least one thread, not ", options_.threads);
}

CpuDevice::~CpuDevice() {
  free_pool();
}

}  // namespace mcpp
