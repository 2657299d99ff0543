// N neighbouring elements of any type: for kernels that read one type and write another, and so move 16 bytes of the
// widest or narrowest of them; with N = 1 the same kernel takes rows that are not aligned.
#pragma once
#include "tensor/cuda/launch.cuh"

namespace mcpp {

constexpr std::size_t lanes_alignment(std::size_t bytes) {
  return bytes < 16 ? bytes : 16;
}

/// N is a power of two. Moved by one instruction up to 16 bytes, by 16 bytes at a time above.
template <class E, int N>
struct alignas(lanes_alignment(N * sizeof(E))) Lanes {
  E values[N];
};

template <int N, class E>
__device__ __forceinline__ Lanes<E, N> load_lanes(const E* from) {
  return *reinterpret_cast<const Lanes<E, N>*>(from);
}
template <int N, class E>
__device__ __forceinline__ void store_lanes(E* to, const Lanes<E, N>& lanes) {
  *reinterpret_cast<Lanes<E, N>*>(to) = lanes;
}

/// Whether N elements at `p`, and at every multiple of N from it, can be moved as Lanes.
template <int N, class E>
bool is_lane_aligned(const E* p) {
  return reinterpret_cast<std::uintptr_t>(p) % lanes_alignment(N * sizeof(E)) == 0;
}

}  // namespace mcpp
