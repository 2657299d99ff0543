// The choice between backends, where an op is called.
#pragma once
#include "tensor/tensor.h"
#include "tensor/with_cuda.h"

namespace mcpp {

/// Calls f.template operator()<D>() for the device of `t`.
template <class F>
decltype(auto) on_device(const Tensor& t, F&& f) {
  if constexpr (kWithCuda) {
    if (t.device().type() == DeviceType::Cuda) return f.template operator()<DeviceType::Cuda>();
  }
  MCPP_CHECK(t.device().type() == DeviceType::Cpu, "this program was built without CUDA");
  return f.template operator()<DeviceType::Cpu>();
}

}  // namespace mcpp
