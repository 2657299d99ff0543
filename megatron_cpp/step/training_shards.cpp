#include "megatron_cpp/step/training_shards.h"

#include <map>

namespace mcpp {
namespace {

/// Calls f(name, param, first, values) for each part of weights and optimizer states that this rank updates.
template <class F>
void for_each_part(const TrainingState& state, F&& f) {
  for (const TrainingState::Chunk& chunk : state.chunks()) {
    chunk.memory->visit_weights([&](const Param& param, i64 first, const Tensor& values) {
      f(model_tensor(param.name), param, first, values);
    });
  }
  state.optimizer().visit_state([&](StateKind kind, const Param& param, i64 first, const Tensor& values) {
    f(optimizer_tensor(name_of(kind), param.name), param, first, values);
  });
}

}  // namespace

std::vector<NamedShard> shards_to_load(const TrainingState& state) {
  std::vector<NamedShard> shards;
  for_each_part(state, [&](std::string name, const Param& param, i64 first, const Tensor& values) {
    shards.emplace_back(std::move(name), param.box, first, first + values.numel(), values);
  });
  return shards;
}

std::vector<NamedShard> shards_to_save(const TrainingState& state) {
  std::vector<NamedShard> shards;
  std::map<const Param*, const Communicator*> holders;
  for (const ParamAndGradBuffer* buffer : state.buffers()) {
    for (const Param* param : buffer->params()) holders[param] = &buffer->replicas();
  }
  for_each_part(state, [&](std::string name, const Param& param, i64 first, const Tensor& values) {
    const Communicator& replicas = *holders.at(&param);
    const i64 begin = values.numel() * replicas.rank() / replicas.size();
    const i64 end = values.numel() * (replicas.rank() + 1) / replicas.size();
    if (begin == end || !state.saves(param)) return;
    shards.emplace_back(std::move(name), param.box, first + begin, first + end, values.flat(begin, end - begin));
  });
  return shards;
}

}  // namespace mcpp
