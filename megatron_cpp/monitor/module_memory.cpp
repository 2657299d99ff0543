#include "megatron_cpp/monitor/module_memory.h"

#include "model/module_memory.h"

namespace mcpp {

BytesByModule module_memory_usage(const TrainingState& state, i64 zero_stage) {
  BytesByModule modules;
  const auto sum = [&](const Param& param, MemoryClass c) -> double& {
    return modules[module_of(param.name)][std::string(name_of(c))];
  };
  const auto bytes = [](const Tensor& tensor) { return tensor.defined() ? static_cast<double>(tensor.bytes()) : 0; };
  for (const TrainingState::Chunk& chunk : state.chunks()) {
    chunk.model->visit([&](Param& param, int) {  // including parameters of which this rank stores nothing
      sum(param, MemoryClass::Params) += zero_stage < 3 ? bytes(param.value) : 0;
      sum(param, MemoryClass::Grads) += zero_stage < 2 ? bytes(param.main_grad) : 0;
      sum(param, MemoryClass::OptimizerState) += 0;
    });
  }
  for (const ParamAndGradBuffer* buffer : state.buffers()) {
    if (zero_stage >= 3)
      buffer->visit_stored_weights([&](Param& param, i64, const StoredArray& values) {
        sum(param, MemoryClass::Params) += static_cast<double>(values.numel() * size_of(values.dtype()));
      });
    if (zero_stage >= 2)
      buffer->visit_grads(
          [&](Param& param, i64, const Tensor& values) { sum(param, MemoryClass::Grads) += bytes(values); });
  }
  bool is_known = true;
  state.optimizer().visit_stored_state([&](std::string_view, Param& param, i64, const auto& values) {
    is_known = is_known && values.tensor().defined();
    sum(param, MemoryClass::OptimizerState) += bytes(values.tensor());
  });
  if (!is_known)
    for (auto& [module, classes] : modules) classes.erase(std::string(name_of(MemoryClass::OptimizerState)));
  return modules;
}

}  // namespace mcpp
