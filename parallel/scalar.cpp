#include "parallel/scalar.h"

namespace mcpp {

double reduce_scalar(double value, ReduceOp op, Communicator& group, Device& device) {
  if (group.size() == 1) return value;
  MCPP_CHECK(device.type() == DeviceType::Cpu, "scalars are reduced in host memory");
  Tensor t = Tensor::empty({1}, DType::F64, device, MemoryClass::Workspace);
  *t.data<double>() = value;
  group.all_reduce(t, op).wait();
  return *t.data<double>();
}

}  // namespace mcpp
