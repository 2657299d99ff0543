// Numbers that are kept elsewhere than in the memory of a tensor: on a disk, or in a form of their own.
#pragma once
#include <memory>

#include "tensor/tensor.h"

namespace mcpp {

class StoredNumbers {
 public:
  virtual ~StoredNumbers() = default;

  /// As what read() gives them and write() takes them.
  virtual DType dtype() const = 0;
  virtual i64 numel() const = 0;
  /// Their memory where they are in a tensor after all; otherwise undefined.
  virtual Tensor tensor() const { return {}; }
  /// `to` and `from` are in host memory and have that type and size.
  virtual void read(Tensor& to) const = 0;
  virtual void write(const Tensor& from) = 0;
  /// Elements [begin, begin + count).
  virtual std::shared_ptr<StoredNumbers> part(i64 begin, i64 count) const = 0;
  /// These numbers as they are now, whatever becomes of them later. To be read, by any thread, and given up before the
  /// next of them is taken.
  virtual std::shared_ptr<const StoredNumbers> snapshot() const = 0;
};

}  // namespace mcpp
