// Build flag of the CUDA backend and dispatch of ops to a backend. Only for the sources that CMakeLists.txt names as
// choosing between backends; all other sources are compiled identically in both builds.
#pragma once
#include "tensor/tensor.h"

namespace mcpp {

inline constexpr bool kWithCuda = MCPP_WITH_CUDA;

/// Calls f.template operator()<D>() for a device type. On the meta device, returns a value-initialized result instead.
template <class F>
auto on_device(DeviceType type, F&& f) {
  using Result = decltype(f.template operator()<DeviceType::Cpu>());
  if (type == DeviceType::Meta) return Result();
  if constexpr (kWithCuda) {
    if (type == DeviceType::Cuda) return f.template operator()<DeviceType::Cuda>();
  }
  MCPP_CHECK(type == DeviceType::Cpu, "this program was built without CUDA");
  return f.template operator()<DeviceType::Cpu>();
}
/// Calls f.template operator()<D>() for the device of `t`.
template <class F>
auto on_device(const Tensor& t, F&& f) {
  return on_device(t.device().type(), std::forward<F>(f));
}

}  // namespace mcpp
