#include <limits>

#include "tensor/cuda/launch.cuh"
#include "tensor/cuda/ordered_keys.h"

namespace mcpp {
namespace {

constexpr int kThreads = 256;

/// Key of the elements of a type; elements of 16 bits are widened to fp32.
template <class T>
using KeyOf = std::conditional_t<std::is_same_v<T, double>, i64, i32>;
template <class Key>
using NumberOf = std::conditional_t<std::is_same_v<Key, i64>, double, float>;

/// Maps the bits of a number to its key, and its key to the bits: negative numbers have the reverse order of their
/// bits.
template <class Key>
__device__ __forceinline__ Key swap_order(Key bits) {
  return bits < 0 ? bits ^ std::numeric_limits<Key>::max() : bits;
}

template <class T, class Key>
__global__ void encode(const T* x, i64 n, Key* keys) {
  const i64 i = blockIdx.x * i64{blockDim.x} + threadIdx.x;
  if (i >= n) return;
  const NumberOf<Key> value = widen(x[i]);
  keys[i] = isnan(value) ? std::numeric_limits<Key>::max() : swap_order(std::bit_cast<Key>(value));
}

template <class T, class Key>
__global__ void decode(const Key* keys, i64 n, T* x) {
  const i64 i = blockIdx.x * i64{blockDim.x} + threadIdx.x;
  if (i < n) x[i] = narrow<T>(std::bit_cast<NumberOf<Key>>(swap_order(keys[i])));
}

int blocks_for(i64 n) {
  return static_cast<int>((n + kThreads - 1) / kThreads);
}

}  // namespace

DType ordered_key_type(DType type) {
  return type == DType::F64 ? DType::I64 : DType::I32;
}

void encode_ordered_keys(const Tensor& x, const Tensor& keys, cudaStream_t stream) {
  on_float(x.dtype(), [&]<class T>() {
    using Key = KeyOf<T>;
    launch(encode<Element<T>, Key>, blocks_for(x.numel()), kThreads, 0, stream, elements<T>(x), x.numel(),
           keys.data<Key>());
  });
}

void decode_ordered_keys(const Tensor& keys, const Tensor& x, cudaStream_t stream) {
  on_float(x.dtype(), [&]<class T>() {
    using Key = KeyOf<T>;
    launch(decode<Element<T>, Key>, blocks_for(x.numel()), kThreads, 0, stream, keys.data<Key>(), x.numel(),
           elements<T>(x));
  });
}

}  // namespace mcpp
