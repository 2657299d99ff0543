// CUDA language constructs that only nvcc compiles, behind named functions: kernel launches, shared memory, and vector
// accesses. Other compilers get a portable form, which the GPU simulator executes (tests/cuda_simulator).
#pragma once
#include <cuda_runtime.h>

#include <source_location>
#include <string>
#include <type_traits>

#include "tensor/cuda/check.h"

namespace mcpp {

/// Grid of a launch, with the source location of the call for error messages.
struct LaunchGrid {
  // NOLINTBEGIN(google-explicit-constructor): launches name a number of blocks or a dim3.
  LaunchGrid(dim3 blocks, std::source_location location = std::source_location::current())
      : blocks(blocks), site(location) {}
  LaunchGrid(unsigned count, std::source_location location = std::source_location::current())
      : blocks(count), site(location) {}
  LaunchGrid(int count, std::source_location location = std::source_location::current())
      : blocks(static_cast<unsigned>(count)), site(location) {}
  // NOLINTEND

  dim3 blocks;
  std::source_location site;
};

/// Throws if the preceding launch was rejected. Errors during execution surface later.
inline void check_launch(const std::source_location& site) {
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return;
  check_cuda(error, ("kernel launch at " + std::string(site.file_name()) + ":" + std::to_string(site.line())).c_str());
}

/// Launches `kernel` on `stream`, and throws with the source location of the call if the launch is rejected.
template <class... Params>
void launch(void (*kernel)(Params...), const LaunchGrid& grid, dim3 block, std::size_t shared_bytes,
            cudaStream_t stream, std::type_identity_t<Params>... args) {
#ifdef __CUDACC__
  kernel<<<grid.blocks, block, shared_bytes, stream>>>(args...);
#else
  cuda_simulator::launch(kernel, {grid.blocks, block, shared_bytes, stream, grid.site}, args...);
#endif
  check_launch(grid.site);
}

/// Declares a variable in the shared memory of a block: MCPP_SHARED(float[32], sums).
#ifdef __CUDACC__
#define MCPP_SHARED(Type, name) __shared__ std::type_identity_t<Type> name
#else
#define MCPP_SHARED(Type, name)                            \
  static constinit cuda_simulator::SharedSlot name##_slot; \
  auto& name = cuda_simulator::shared_variable<std::type_identity_t<Type>>(name##_slot)
#endif

/// Returns the dynamic shared memory of a block, whose size is set at launch.
template <class T>
__device__ __forceinline__ T* dynamic_shared() {
#ifdef __CUDACC__
  extern __shared__ double dynamic_shared_memory[];
  return reinterpret_cast<T*>(dynamic_shared_memory);
#else
  return static_cast<T*>(cuda_simulator::dynamic_shared_memory());
#endif
}

/// Loads a machine type of 2 to 16 bytes with one instruction; the address must be a multiple of its size.
template <class Bits>
__device__ __forceinline__ Bits load_vector(const void* from) {
#ifndef __CUDACC__
  cuda_simulator::check_alignment(from, sizeof(Bits), "load");
#endif
  return *static_cast<const Bits*>(from);
}

/// Stores a machine type of 2 to 16 bytes with one instruction; the address must be a multiple of its size. Uses PTX
/// because the compiler splits some C++ stores, including uint4, into 4-byte parts.
template <class Bits>
__device__ __forceinline__ void store_vector(void* to, Bits bits) {
#ifdef __CUDACC__
  if constexpr (sizeof(Bits) == 16) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(bits.x), "r"(bits.y), "r"(bits.z),
                 "r"(bits.w)
                 : "memory");
    return;
  } else if constexpr (sizeof(Bits) == 8) {
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(bits.x), "r"(bits.y) : "memory");
    return;
  }
#else
  cuda_simulator::check_alignment(to, sizeof(Bits), "store");
#endif
  *static_cast<Bits*>(to) = bits;
}

}  // namespace mcpp
