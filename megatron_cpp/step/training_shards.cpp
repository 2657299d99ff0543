#include "megatron_cpp/step/training_shards.h"

namespace mcpp {
namespace {

using Values = const StoredArray&;

/// Calls f(name, param, first, values) for each part of weights and optimizer states that this rank updates. `values`
/// share a tensor if they are plain and in memory.
template <class F>
void for_each_part(const TrainingState& state, F&& f) {
  for (const TrainingState::Chunk& chunk : state.chunks()) {
    chunk.memory->visit_stored_weights(
        [&](const Param& param, i64 first, Values values) { f(model_tensor(param.name), param, first, values); });
  }
  state.optimizer().visit_stored_state([&](std::string_view state_name, const Param& param, i64 first, Values values) {
    f(optimizer_tensor(state_name, param.name), param, first, values);
  });
}

/// Adds router state other than weights; it is small and replicated on every rank of a stage.
void add_router_state(const TrainingState& state, std::vector<NamedShard>& shards) {
  const auto add = [&](const std::string& name, Tensor* values) {
    if (values) shards.emplace_back(name, slab(values->shape(), 0, 0, values->numel()), *values);
  };
  for (const TrainingState::Chunk& chunk : state.chunks()) {
    for (const auto& [layer, router] : chunk.model->routers()) {
      add(model_tensor(router->bias_name()), router->expert_bias());
      add(optimizer_tensor("tokens_per_expert", router->weight().name), router->global_tokens());
    }
  }
}

/// Adds the histories of layers with the recipe `delayed`, which are replicated on every rank of a stage.
void add_amax_histories(const TrainingState& state, std::vector<NamedShard>& shards) {
  if (!state.amax_histories()) return;
  state.amax_histories()->visit([&](const std::string& module, const Tensor& values) {
    shards.emplace_back(optimizer_tensor(kAmaxHistory, module), slab(values.shape(), 0, 0, kScaledTensors), values);
  });
}

/// Owner of PowerSGD state: each rank has its own errors; each group that reduces together has its own factors. `own`
/// is the index of this owner among `all`.
struct StateOwner {
  int own, all;
};
std::string owner_state_name(const char* state, const StateOwner& holder, const std::string& param) {
  return optimizer_tensor(str(state, "_", holder.own, "_of_", holder.all), param);
}

/// Returns a name for this rank's box of a matrix, on which the factors depend.
std::string box_name(const Box& box) {
  std::string name;
  for (std::size_t axis = 0; axis < box.shape.size(); ++axis)
    name += str(axis > 0 ? "," : "", box.offset[axis], "+", box.shape[axis]);
  return name;
}

void add_power_sgd(const TrainingState& state, const ParamAndGradBuffer& buffer, bool is_to_save,
                   std::vector<NamedShard>& shards) {
  if (buffer.power_sgd_states().empty()) return;
  const DataParallelGroups groups = state.gradient_groups(buffer.grid());
  const Communicator &shard = groups.shard, &replicas = groups.replicate;
  const StateOwner rank{replicas.rank() * shard.size() + shard.rank(), replicas.size() * shard.size()};
  for (const PowerSgdState& s : buffer.power_sgd_states()) {
    if (is_to_save && !state.should_save(*s.param)) continue;
    shards.emplace_back(owner_state_name(kPowerSgdError, rank, s.param->name), s.param->box, s.error);
    if (is_to_save && shard.rank() > 0) continue;
    const StateOwner group{replicas.rank(), replicas.size()};
    shards.emplace_back(owner_state_name(kPowerSgdFactor, group, str(s.param->name, "/", box_name(s.param->box))),
                        slab(s.factor.shape(), 0, 0, s.factor.dim(0)), s.factor);
  }
}

}  // namespace

std::vector<NamedShard> shards_to_load(const TrainingState& state) {
  std::vector<NamedShard> shards;
  add_router_state(state, shards);
  add_amax_histories(state, shards);
  for (const ParamAndGradBuffer* buffer : state.buffers()) add_power_sgd(state, *buffer, /*is_to_save=*/false, shards);
  for_each_part(state, [&](std::string name, const Param& param, i64 first, Values values) {
    shards.emplace_back(std::move(name), param.box, first, first + values.numel(), values);
  });
  return shards;
}

PrimaryShard::PrimaryShard(const TrainingState& state) : state_(state) {
  for (const ParamAndGradBuffer* buffer : state.buffers()) {
    for (const Param* param : buffer->params()) replicas_[param] = &buffer->replicas();
  }
}

Part PrimaryShard::of(const Param& param, i64 count) const {
  if (!state_.should_save(param)) return {};
  const Communicator& replicas = *replicas_.at(&param);
  const i64 begin = count * replicas.rank() / replicas.size(), end = count * (replicas.rank() + 1) / replicas.size();
  return {.first = begin, .count = end - begin};
}

std::vector<NamedShard> shards_to_save(const TrainingState& state) {
  std::vector<NamedShard> shards;
  if (state.should_save_for_stage()) {
    add_router_state(state, shards);
    add_amax_histories(state, shards);
  }
  for (const ParamAndGradBuffer* buffer : state.buffers()) add_power_sgd(state, *buffer, /*is_to_save=*/true, shards);
  const PrimaryShard share(state);
  for_each_part(state, [&](std::string name, const Param& param, i64 first, Values values) {
    const Part part = share.of(param, values.numel());
    if (part.count == 0) return;
    const i64 begin = first + part.first;
    shards.emplace_back(std::move(name), param.box, begin, begin + part.count, values.part(part.first, part.count));
  });
  return shards;
}

}  // namespace mcpp
