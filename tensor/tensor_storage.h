// Tensor storage outside of tensor memory: on a disk, or in an encoded form.
#pragma once
#include <memory>

#include "tensor/tensor.h"

namespace mcpp {

class TensorStorage {
 public:
  virtual ~TensorStorage() = default;

  /// Dtype of the values returned by read() and accepted by write().
  virtual DType dtype() const = 0;
  virtual i64 numel() const = 0;
  /// Returns a tensor that shares the storage if it is in tensor memory; otherwise undefined.
  virtual Tensor tensor() const { return {}; }
  /// Reads or writes all values; `to` and `from` are in host memory and have this dtype and size.
  virtual void read(Tensor& to) const = 0;
  virtual void write(const Tensor& from) = 0;
  /// Returns a view of elements [begin, begin + count).
  virtual std::shared_ptr<TensorStorage> part(i64 begin, i64 count) const = 0;
  /// Returns a snapshot of the current values, unaffected by later writes. It may be read by any thread and must be
  /// released before the next snapshot is taken.
  virtual std::shared_ptr<const TensorStorage> snapshot() const = 0;
};

}  // namespace mcpp
