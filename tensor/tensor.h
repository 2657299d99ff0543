// Contiguous, row-major view (shape, element type) into a shared Buffer on one Device. Copying a Tensor copies the
// handle, not the data; constness of the handle does not protect the data.
#pragma once
#include <memory>
#include <vector>

#include "tensor/device.h"
#include "tensor/dtype.h"

namespace mcpp {

using Shape = std::vector<i64>;
i64 numel(const Shape& shape);

/// Memory of one Device, returned to its pool when the last Tensor that uses it is destroyed. The Device must outlive
/// it.
class Buffer {
 public:
  Buffer(i64 bytes, Device& device, MemoryClass c);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  Device& device() const { return device_; }
  MemoryClass memory_class() const { return class_; }

 private:
  Device& device_;
  i64 bytes_;
  MemoryClass class_;
  void* data_;
};

class Tensor {
 public:
  Tensor() = default;  ///< undefined: no storage, defined() is false

  /// Returns an uninitialized tensor.
  static Tensor empty(Shape shape, DType dtype, Device& device, MemoryClass c = MemoryClass::Activations);
  static Tensor zeros(Shape shape, DType dtype, Device& device, MemoryClass c = MemoryClass::Activations);
  /// Returns an uninitialized tensor with the dtype and device of `other`, and its shape unless one is given.
  static Tensor like(const Tensor& other) { return like(other, other.shape()); }
  static Tensor like(const Tensor& other, Shape shape) {
    return empty(std::move(shape), other.dtype(), other.device());
  }

  bool defined() const { return storage_ != nullptr; }
  const Shape& shape() const { return shape_; }
  i64 rank() const { return static_cast<i64>(shape_.size()); }
  i64 dim(i64 axis) const;  ///< size of an axis; a negative axis counts from the last
  i64 numel() const { return mcpp::numel(shape_); }
  i64 bytes() const { return numel() * size_of(dtype_); }
  DType dtype() const { return dtype_; }
  Device& device() const { return storage_->device(); }
  MemoryClass memory_class() const { return storage_->memory_class(); }

  /// Returns a pointer to the first element; T must be the element type.
  template <class T>
  T* data() const {
    MCPP_CHECK(DTypeOf<T>::value == dtype_, "the tensor is ", name_of(dtype_));
    return static_cast<T*>(raw());
  }
  void* raw() const { return storage_->data() + offset_ * size_of(dtype_); }

  /// Returns a view of the same elements with a different shape; one size may be -1.
  Tensor view(Shape shape) const;
  /// Returns rows [begin, end) of the first axis.
  Tensor slice(i64 begin, i64 end) const;
  /// Returns `count` elements from flat element `begin` on, as one axis.
  Tensor flat(i64 begin, i64 count) const;
  /// Returns the same bytes as elements of a different type, as one axis.
  Tensor reinterpret(DType dtype) const;
  /// Merges all axes except the last: [rows, last].
  Tensor as_matrix() const { return view({-1, shape_.back()}); }

 private:
  std::shared_ptr<Buffer> storage_;
  i64 offset_ = 0;  // in elements
  Shape shape_;
  DType dtype_ = DType::F32;
};

/// Returns the number of rows of x viewed as a matrix.
inline i64 row_count(const Tensor& x) {
  return x.dim(-1) == 0 ? 0 : x.numel() / x.dim(-1);
}

}  // namespace mcpp
