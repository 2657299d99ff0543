#include "parallel/reduce_scalar.h"

#include "tensor/transfer.h"

namespace mcpp {

double reduce_scalar(double value, ReduceOp op, Communicator& group, Device& device) {
  if (group.size() == 1) return value;
  Tensor t = Tensor::empty({1}, DType::F64, device, MemoryClass::Workspace);
  write_values<double>({&value, 1}, t);
  group.all_reduce(t, op).wait();
  read_bytes(t, &value);
  return value;
}

}  // namespace mcpp
