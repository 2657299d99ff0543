// Numbers on their way from a device to the host, which goes on queueing work meanwhile.
#pragma once
#include <memory>
#include <vector>

#include "tensor/tensor.h"

namespace mcpp {

/// One copy at a time; the memory that it goes to is kept between copies (pinned, for a GPU).
class LateCopy {
 public:
  virtual ~LateCopy() = default;
  LateCopy(const LateCopy&) = delete;
  LateCopy& operator=(const LateCopy&) = delete;

  /// Ordered after the ops before it; `from`, fp64 with as many elements as the copy was made for, may be changed by
  /// ops after it.
  virtual void start(const Tensor& from) = 0;
  /// Waits for the copy that was started last, and for nothing that was queued after it.
  virtual std::vector<double> values() = 0;

 protected:
  LateCopy() = default;
};

/// Defined by each backend: tensor/host/late_copy.cpp, tensor/cuda/host/late_copy.cpp.
template <DeviceType D>
std::unique_ptr<LateCopy> make_late_copy_on(Device& device, i64 count);

/// For tensors of `count` numbers on `device`, which must outlive it.
std::unique_ptr<LateCopy> make_late_copy(Device& device, i64 count);

}  // namespace mcpp
