// Build flag of the CUDA backend and dispatch of ops to a backend. Include only in the sources that CMakeLists.txt
// lists as choosing between backends; all other sources are compiled identically in both builds.
#pragma once
#include "tensor/op_trace.h"

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
/// Calls f.template operator()<D>() for the device of `t`. On a meta device that records ops, adds the OpRecord that
/// `describe` returns.
template <class Describe, class F>
auto on_device(const Tensor& t, const Describe& describe, F&& f) {
  if (OpTrace* trace = trace_of(t)) trace->ops.push_back(describe());
  return on_device(t.device().type(), std::forward<F>(f));
}
/// Overload for an op that reads and writes about as many bytes as `t` has.
template <class F>
auto on_device(const Tensor& t, F&& f) {
  const auto describe = [&] {
    OpRecord record;
    record.bytes = 2 * static_cast<double>(t.bytes());
    return record;
  };
  return on_device(t, describe, std::forward<F>(f));
}

}  // namespace mcpp
