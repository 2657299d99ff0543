// A small value for all ranks, such as the id by which NCCL's communicators find one another.
#pragma once
#include <cstring>
#include <type_traits>

#include "comm/communicator.h"

namespace mcpp {

/// The value as a tensor in host memory.
template <class T>
class ValueTensor {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(i32) == 0);

 public:
  explicit ValueTensor(const T& value) { std::memcpy(tensor.raw(), &value, sizeof(T)); }
  void read(T& value) const { std::memcpy(&value, tensor.raw(), sizeof(T)); }

 private:
  CpuDevice memory_;

 public:
  Tensor tensor = Tensor::empty({static_cast<i64>(sizeof(T) / sizeof(i32))}, DType::I32, memory_, MemoryClass::Other);
};

/// Gives every rank of `host`, a group that carries tensors in host memory, the `value` of rank 0, as bytes.
template <class T>
void broadcast_value(T& value, Communicator& host) {
  ValueTensor<T> bytes(value);
  host.broadcast(bytes.tensor, 0).wait();
  bytes.read(value);
}

/// The same from one rank to another.
template <class T>
void send_value(const T& value, Communicator& host, int destination) {
  host.send(ValueTensor<T>(value).tensor, destination).wait();
}
template <class T>
T receive_value(Communicator& host, int source) {
  T value{};
  ValueTensor<T> bytes(value);
  host.recv(bytes.tensor, source).wait();
  bytes.read(value);
  return value;
}

}  // namespace mcpp
