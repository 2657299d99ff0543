#include "comm/connect_collectives.h"

namespace mcpp {

void connect_collectives(Communicator& group, Device& device, bool connects_second_lane) {
  if (group.size() == 1) return;
  const Tensor local_value = Tensor::zeros({1}, DType::F32, device, MemoryClass::Workspace);
  Tensor all = Tensor::zeros({group.size()}, DType::F32, device, MemoryClass::Workspace),
         sum = Tensor::zeros({1}, DType::F32, device, MemoryClass::Workspace);
  Work gather = group.all_gather(local_value, all), reduction;
  if (connects_second_lane) reduction = group.all_reduce(sum, ReduceOp::Sum);
  gather.wait();
  reduction.wait();
}

}  // namespace mcpp
