// Dispatch of ops to a backend.
#pragma once
#include "tensor/tensor.h"
#include "tensor/with_cuda.h"

namespace mcpp {

/// Calls f.template operator()<D>() for a device type.
template <class F>
decltype(auto) on_device(DeviceType type, F&& f) {
  if constexpr (kWithCuda) {
    if (type == DeviceType::Cuda) return f.template operator()<DeviceType::Cuda>();
  }
  MCPP_CHECK(type == DeviceType::Cpu, "this program was built without CUDA");
  return f.template operator()<DeviceType::Cpu>();
}
/// Calls f.template operator()<D>() for the device of `t`.
template <class F>
decltype(auto) on_device(const Tensor& t, F&& f) {
  return on_device(t.device().type(), std::forward<F>(f));
}

}  // namespace mcpp
