// Numbers of tensors on the host: for the few that the host draws, reads or computes (tokens, initial weights, losses).
#pragma once
#include <span>
#include <vector>

#include "tensor/tensor.h"

namespace mcpp {

/// Copies of whole tensors, as bytes, between the host and the device D: tensor/transfer.cpp, tensor/cuda/transfer.cpp.
template <DeviceType D>
struct Transfer {
  /// Waits for the ops that compute `from`.
  static void read(const Tensor& from, void* to);
  /// Ordered after the ops before it. `from`, which is not pinned memory, may be changed at once.
  static void write(const void* from, Tensor& to);
};

/// The same for the device of the tensor.
void read_bytes(const Tensor& from, void* to);
void write_bytes(const void* from, Tensor& to);

/// The numbers of t, whose element type T must be.
template <class T>
std::vector<T> read_values(const Tensor& t) {
  MCPP_CHECK(t.dtype() == DTypeOf<T>::value, "the tensor is ", name_of(t.dtype()));
  std::vector<T> values(static_cast<std::size_t>(t.numel()));
  read_bytes(t, values.data());
  return values;
}

/// t = values, as many as t has.
template <class T>
void write_values(std::span<const T> values, Tensor& t) {
  MCPP_CHECK(t.dtype() == DTypeOf<T>::value && t.numel() == static_cast<i64>(values.size()), values.size(),
             " values for a tensor ", t.shape(), " of ", name_of(t.dtype()));
  write_bytes(values.data(), t);
}
template <class T>
void write_values(const std::vector<T>& values, Tensor& t) {
  write_values(std::span<const T>(values), t);
}

/// The numbers of a tensor where the host can work on them: the tensor's own memory on the CPU, elsewhere a copy. A
/// range, so that host code is the same for both.
template <class T>
class HostValues {
 public:
  explicit HostValues(const Tensor& t) : tensor_(t) {
    if (is_copy()) copy_ = read_values<T>(t);
    values_ = is_copy() ? std::span<T>(copy_) : std::span<T>(t.data<T>(), static_cast<std::size_t>(t.numel()));
  }
  HostValues(HostValues&&) = default;  // the heap memory of a copy stays where it is

  T& operator[](std::size_t i) const { return values_[i]; }
  std::size_t size() const { return values_.size(); }
  auto begin() const { return values_.begin(); }
  auto end() const { return values_.end(); }

  /// After changes: gives them to the tensor.
  void write_back() {
    if (is_copy()) write_values(copy_, tensor_);
  }

 private:
  bool is_copy() const { return tensor_.device().type() != DeviceType::Cpu; }

  Tensor tensor_;
  std::vector<T> copy_;
  std::span<T> values_;
};

}  // namespace mcpp
