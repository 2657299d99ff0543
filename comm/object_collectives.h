// Collectives over strings, results and small values. An error on any rank is thrown on all ranks.
#pragma once
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "comm/communicator.h"

namespace mcpp {

/// Returns the strings of all ranks, by rank; lengths may differ. Every rank receives all of them, so large groups
/// should use a reduction or gather_strings() where these suffice. Collective.
std::vector<std::string> all_gather_strings(std::string_view text, Communicator& group);

/// Returns the strings of all ranks, by rank, on rank 0, and an empty list on all others. Strings travel along a tree:
/// each rank sends one message. Collective.
std::vector<std::string> gather_strings(std::string_view text, Communicator& group);

/// Returns true if all ranks have the same text, according to its checksum. Communicates the same few bytes for any
/// text. Collective.
bool is_identical_on_ranks(std::string_view text, Communicator& group);

/// Runs f on every rank and returns all results, by rank. If f throws on any rank, all ranks throw that error with the
/// failed rank's number, so no rank blocks. Collective.
std::vector<std::string> run_on_all_ranks(Communicator& group, const std::function<std::string()>& f);

/// Runs f on rank 0 only and returns its result on every rank. If f throws, all ranks throw. Collective.
std::string broadcast_from_rank0(Communicator& group, const std::function<std::string()>& f);

/// Runs f, which returns nothing, on every rank or on rank 0 only. If f throws, all ranks throw. Collective.
template <class F>
requires std::is_void_v<std::invoke_result_t<F&>>
void run_on_all_ranks(Communicator& group, F&& f) {
  run_on_all_ranks(group, std::function<std::string()>([&] { return f(), std::string(); }));
}
template <class F>
void run_on_rank0(Communicator& group, F&& f) {
  broadcast_from_rank0(group, std::function<std::string()>([&] { return f(), std::string(); }));
}

/// Returns the condition that f returns on rank 0. If f throws, all ranks throw. Collective.
template <class F>
requires std::is_same_v < std::invoke_result_t<F&>,
bool > bool broadcast_from_rank0(Communicator& group, F&& f) {
  return !broadcast_from_rank0(group, std::function<std::string()>([&] { return std::string(f() ? "1" : ""); }))
              .empty();
}

/// Tensor of i32 elements in host memory that holds the bytes of a value.
template <class T>
class ValueTensor {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(i32) == 0);

 public:
  explicit ValueTensor(const T& value) { std::memcpy(tensor.raw(), &value, sizeof(T)); }
  void read(T& value) const { std::memcpy(&value, tensor.raw(), sizeof(T)); }

 private:
  CpuDevice host_;

 public:
  Tensor tensor = Tensor::empty({static_cast<i64>(sizeof(T) / sizeof(i32))}, DType::I32, host_, MemoryClass::Other);
};

/// Returns the node of each rank of `group`, identified by its first rank. `node` is the group of the ranks on this
/// rank's node. Collective over `group`.
std::vector<int> nodes_of_ranks(Communicator& group, Communicator& node);

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
