// A small value for all ranks, such as the id by which NCCL's communicators find one another.
#pragma once
#include <cstring>
#include <type_traits>

#include "comm/communicator.h"

namespace mcpp {

/// Gives every rank of `host`, a group that carries tensors in host memory, the `value` of rank 0, as bytes.
template <class T>
void broadcast_value(T& value, Communicator& host) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(i32) == 0);
  CpuDevice memory;
  Tensor bytes = Tensor::empty({static_cast<i64>(sizeof(T) / sizeof(i32))}, DType::I32, memory, MemoryClass::Other);
  std::memcpy(bytes.raw(), &value, sizeof(T));
  host.broadcast(bytes, 0).wait();
  std::memcpy(&value, bytes.raw(), sizeof(T));
}

}  // namespace mcpp
