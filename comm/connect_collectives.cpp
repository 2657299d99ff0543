#include "comm/connect_collectives.h"

namespace mcpp {

void connect_collectives(Communicator& group, Device& device, bool at_a_time) {
  if (group.size() == 1) return;
  const Tensor mine = Tensor::zeros({1}, DType::F32, device, MemoryClass::Workspace);
  Tensor all = Tensor::zeros({group.size()}, DType::F32, device, MemoryClass::Workspace),
         sum = Tensor::zeros({1}, DType::F32, device, MemoryClass::Workspace);
  Work gather = group.all_gather(mine, all), reduction;
  if (at_a_time) reduction = group.all_reduce(sum, ReduceOp::Sum);
  gather.wait();
  reduction.wait();
}

}  // namespace mcpp
