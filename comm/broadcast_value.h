// Broadcast, send and receive of small trivially copyable values, such as NCCL's unique id.
#pragma once
#include <cstring>
#include <type_traits>

#include "comm/communicator.h"

namespace mcpp {

/// A value viewed as an i32 tensor in host memory.
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

/// Broadcasts `value` bytewise from rank 0. Collective. `host` must be a group that carries tensors in host memory.
template <class T>
void broadcast_value(T& value, Communicator& host) {
  ValueTensor<T> bytes(value);
  host.broadcast(bytes.tensor, 0).wait();
  bytes.read(value);
}

/// Sends `value` to rank `destination`, which must call receive_value().
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
