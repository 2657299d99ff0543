// CUDA's kernel language for a host compiler. Included before every kernel source of a simulator build, so that the
// sources compile unchanged against the toolkit's own headers: thread indices, barriers, warp intrinsics and shared
// memory call the simulator, arithmetic intrinsics are computed on the CPU.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tests/cuda_simulator/include/checked_index.h"
#include "tests/cuda_simulator/include/kernel_interface.h"

#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__

namespace mcpp::cuda_simulator {

template <class... Params>
void launch(void (*kernel)(Params...), const LaunchConfig& config, const Params&... args) {
  enqueue_kernel(reinterpret_cast<const void*>(kernel), config, (sizeof(Params) + ... + 0),
                 [kernel, args...] { kernel(args...); });
}

template <class T>
T& shared_variable(SharedSlot& slot) {
  return *static_cast<T*>(shared_variable_memory(slot, sizeof(T), alignof(T)));
}
/// Indices of the running thread and block, constant for the lifetime of a fiber; the scheduler sets them when it
/// switches.
extern const uint3 thread_index, block_index;
extern const dim3 block_size, grid_size;

template <class T>
std::uint64_t to_bits(T x) {
  static_assert(sizeof(T) <= sizeof(std::uint64_t));
  std::uint64_t bits = 0;
  std::memcpy(&bits, &x, sizeof(T));
  return bits;
}
template <class T>
T shuffle(unsigned mask, T x, int source_lane) {
  const std::uint64_t bits = meet_warp(WarpOp::Shuffle, mask, to_bits(x), source_lane);
  std::memcpy(&x, &bits, sizeof(T));
  return x;
}

}  // namespace mcpp::cuda_simulator

#define threadIdx ::mcpp::cuda_simulator::checked_indices(::mcpp::cuda_simulator::thread_index)
#define blockIdx ::mcpp::cuda_simulator::checked_indices(::mcpp::cuda_simulator::block_index)
#define blockDim ::mcpp::cuda_simulator::checked_indices(::mcpp::cuda_simulator::block_size)
#define gridDim ::mcpp::cuda_simulator::checked_indices(::mcpp::cuda_simulator::grid_size)

inline void __syncthreads() {
  mcpp::cuda_simulator::meet_block();
}
inline void __syncwarp(unsigned mask = ~0u) {
  mcpp::cuda_simulator::meet_warp(mcpp::cuda_simulator::WarpOp::Sync, mask, 0, 0);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T x, int lane_mask) {
  return mcpp::cuda_simulator::shuffle(mask, x, mcpp::cuda_simulator::lane_index() ^ lane_mask);
}
template <class T>
T __shfl_sync(unsigned mask, T x, int source_lane) {
  return mcpp::cuda_simulator::shuffle(mask, x, source_lane & 31);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return static_cast<unsigned>(
      mcpp::cuda_simulator::meet_warp(mcpp::cuda_simulator::WarpOp::Ballot, mask, predicate != 0, 0));
}
template <class T>
unsigned __match_any_sync(unsigned mask, T x) {
  using namespace mcpp::cuda_simulator;
  return static_cast<unsigned>(meet_warp(WarpOp::MatchAny, mask, to_bits(x), 0));
}

inline int __popc(unsigned x) {
  return __builtin_popcount(x);
}
// Fibers switch only at barriers and warp intrinsics, so a plain read-modify-write is atomic. It is excluded from the
// instrumentation, because atomic accesses do not race with one another.
template <class T>
[[gnu::noinline, gnu::no_sanitize("thread")]] T atomicAdd(T* to, std::type_identity_t<T> x) {
  mcpp::cuda_simulator::record_atomic(to, sizeof(T));
  const T old = *to;
  *to = old + x;
  return old;
}
template <class T>
[[gnu::noinline, gnu::no_sanitize("thread")]] T atomicMax(T* to, std::type_identity_t<T> x) {
  mcpp::cuda_simulator::record_atomic(to, sizeof(T));
  const T old = *to;
  if (x > old) *to = x;
  return old;
}

template <class To, class From>
To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}
inline int __float_as_int(float x) {
  return bits_as<int>(x);
}
inline unsigned __float_as_uint(float x) {
  return bits_as<unsigned>(x);
}
inline float __int_as_float(int x) {
  return bits_as<float>(x);
}
inline float __uint_as_float(unsigned x) {
  return bits_as<float>(x);
}
/// Returns x / y; 0 for divisors between 2^126 and 2^128, as documented.
inline float __fdividef(float x, float y) {
  const float magnitude = std::fabs(y);
  if (magnitude > 0x1p126f && std::isfinite(magnitude)) return std::isinf(x) ? NAN : std::copysign(0.0f, x * y);
  return x / y;
}
inline float __expf(float x) {
  return std::exp(x);
}
inline float __fdiv_rn(float a, float b) {
  return a / b;
}
inline float __fmul_rn(float a, float b) {
  return a * b;
}
inline float __fadd_rn(float a, float b) {
  return a + b;
}
inline int __float2int_rn(float x) {
  return static_cast<int>(std::nearbyint(x));
}
inline double normcdf(double x) {
  return 0.5 * std::erfc(-x * M_SQRT1_2);
}
inline float normcdf(float x) {
  return static_cast<float>(normcdf(static_cast<double>(x)));
}

/// Returns the operand that is not NaN, for floating-point types, as CUDA's max and min do.
template <class A, class B>
constexpr auto max(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>) return std::fmax(static_cast<T>(a), static_cast<T>(b));
  return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(b) : static_cast<T>(a);
}
template <class A, class B>
constexpr auto min(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>) return std::fmin(static_cast<T>(a), static_cast<T>(b));
  return static_cast<T>(b) < static_cast<T>(a) ? static_cast<T>(b) : static_cast<T>(a);
}

/// Overload of cuda_runtime.h for pointers to kernels, which the header has only for nvcc.
template <class Kernel>
requires std::is_function_v<Kernel> cudaError_t cudaFuncSetAttribute(Kernel* kernel, cudaFuncAttribute attribute,
                                                                     int value) {
  return ::cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}
