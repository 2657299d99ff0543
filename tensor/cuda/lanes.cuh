// N neighbouring elements of any type, moved by one instruction: for kernels that read one type and write another, and
// so move fewer than 16 bytes of one of them; with N = 1 the same kernel takes rows that are not aligned.
#pragma once
#include <bit>

#include "tensor/cuda/launch.cuh"

namespace mcpp {

/// N is a power of two.
template <class E, int N>
struct alignas(N * sizeof(E)) Lanes {
  static_assert(N * sizeof(E) <= 16);
  E values[N];
};

/// The type that is moved: as a whole, where the compiler would split stores of a struct into its members.
template <std::size_t kBytes>
using Bits = std::conditional_t<kBytes == 16, uint4,
                                std::conditional_t<kBytes == 8, uint2, std::conditional_t<kBytes == 4, u32, u16>>>;

template <int N, class E>
__device__ __forceinline__ Lanes<E, N> load_lanes(const E* from) {
  return std::bit_cast<Lanes<E, N>>(*reinterpret_cast<const Bits<sizeof(Lanes<E, N>)>*>(from));
}
template <int N, class E>
__device__ __forceinline__ void store_lanes(E* to, const Lanes<E, N>& lanes) {
  using B = Bits<sizeof(Lanes<E, N>)>;
  __stwb(reinterpret_cast<B*>(to), std::bit_cast<B>(lanes));
}

/// Whether N elements at `p`, and at every multiple of N from it, can be moved as Lanes.
template <int N, class E>
bool is_lane_aligned(const E* p) {
  return reinterpret_cast<std::uintptr_t>(p) % sizeof(Lanes<E, N>) == 0;
}

}  // namespace mcpp
