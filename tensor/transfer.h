// Transfers of tensor values to and from the host, for small data that the host draws, reads or computes (tokens,
// initial weights, losses).
#pragma once
#include <span>
#include <utility>
#include <vector>

#include "tensor/tensor.h"

namespace mcpp {

/// Copies of full tensors, as bytes, between the host and device D: tensor/transfer.cpp, tensor/cuda/transfer.cpp.
template <DeviceType D>
struct Transfer {
  /// Waits for the ops that compute `from`.
  static void read(const Tensor& from, void* to);
  /// Writes in stream order after earlier ops. Unless `from` is pinned memory, it may be modified immediately.
  static void write(const void* from, Tensor& to);
};

/// Calls Transfer for the tensor's device.
void read_bytes(const Tensor& from, void* to);
void write_bytes(const void* from, Tensor& to);

/// Returns the bytes of a CPU tensor.
inline std::span<std::byte> host_bytes(const Tensor& t) {
  return {static_cast<std::byte*>(t.raw()), static_cast<std::size_t>(t.bytes())};
}

/// Returns the values of t; T must be its element type.
template <class T>
std::vector<T> read_values(const Tensor& t) {
  MCPP_CHECK(t.dtype() == DTypeOf<T>::value, "the tensor is ", name_of(t.dtype()));
  std::vector<T> values(static_cast<std::size_t>(t.numel()));
  read_bytes(t, values.data());
  return values;
}

/// Copies `values`, of the same size as t, into t.
template <class T>
void write_values(std::span<const T> values, Tensor& t) {
  MCPP_CHECK(t.dtype() == DTypeOf<T>::value && t.numel() == static_cast<i64>(values.size()), "cannot write ",
             values.size(), " values to a ", name_of(t.dtype()), " tensor ", t.shape());
  write_bytes(values.data(), t);
}
template <class T>
void write_values(const std::vector<T>& values, Tensor& t) {
  write_values(std::span<const T>(values), t);
}

/// Values of a tensor for host code: the tensor's memory on the CPU, and a copy on other devices. Host code iterates
/// over both in the same way.
template <class T>
class HostValues {
 public:
  explicit HostValues(const Tensor& t) : tensor_(t) {
    if (is_copy()) copy_ = read_values<T>(t);
    values_ = is_copy() ? std::span<T>(copy_) : std::span<T>(t.data<T>(), static_cast<std::size_t>(t.numel()));
  }
  HostValues(HostValues&&) = default;  // moving a copy keeps its heap memory in place

  T& operator[](std::size_t i) const { return values_[i]; }
  std::size_t size() const { return values_.size(); }
  auto begin() const { return values_.begin(); }
  auto end() const { return values_.end(); }

  /// Writes changes back to the tensor.
  void write_back() {
    if (is_copy()) write_values(copy_, tensor_);
  }

 private:
  bool is_copy() const { return tensor_.device().type() != DeviceType::Cpu; }

  Tensor tensor_;
  std::vector<T> copy_;
  std::span<T> values_;
};

// Index tables that the host computes for kernels.

/// Returns an int32 tensor of shape `shape` with these values.
inline Tensor integers(std::span<const i32> values, Shape shape, Device& device) {
  Tensor t = Tensor::empty(std::move(shape), DType::I32, device);
  write_values(values, t);
  return t;
}
inline Tensor integers(std::span<const i32> values, Device& device) {
  return integers(values, {static_cast<i64>(values.size())}, device);
}

}  // namespace mcpp
