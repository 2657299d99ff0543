#include "megatron_cpp/bench/bench_groups.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <optional>

#include "parallel/reduce_scalar.h"

namespace mcpp {
namespace {

i64 own_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    i64 kib = 0;
    if (word == "RssAnon:" && status >> kib) return kib << 10;
  }
  return 0;
}

/// Returns the seconds until all ranks have finished `f`.
template <class F>
double seconds_of_all(Communicator& world, const F& f) {
  world.barrier();
  const auto begin = std::chrono::steady_clock::now();
  f();
  world.barrier();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void sum_once(const ParallelState& state, Device& device) {
  for (Communicator* group : {state.tp.get(), state.dp.get(), state.dp_shard.get(), state.dp_replicate.get(),
                              state.tp_dp_shard.get(), state.tp_pp.get(), &state.world})
    reduce_scalar(1, ReduceOp::Sum, *group, device);
}

}  // namespace

GroupCosts bench_groups(Communicator& world, const ParallelSizes& sizes) {
  CpuDevice device;
  reduce_scalar(1, ReduceOp::Sum, world, device);  // initializes the world itself
  const i64 before = own_bytes();
  std::optional<ParallelState> state;
  GroupCosts local{.ranks = world.size()};
  local.make_s = seconds_of_all(world, [&] { state.emplace(make_parallel_state(world, sizes)); });
  local.first_use_s = seconds_of_all(world, [&] { sum_once(*state, device); });
  local.own_bytes = std::max<i64>(0, own_bytes() - before);
  for (const auto& [name, meter] : state->meters) {
    if (meter->ranks.size() < 2) continue;
    ++local.groups;
    local.members += static_cast<i64>(meter->ranks.size());
  }
  const auto max_over_ranks = [&](double value) { return reduce_scalar(value, ReduceOp::Max, world, device); };
  return {.ranks = local.ranks,
          .groups = static_cast<i64>(max_over_ranks(static_cast<double>(local.groups))),
          .members = static_cast<i64>(max_over_ranks(static_cast<double>(local.members))),
          .make_s = max_over_ranks(local.make_s),
          .first_use_s = max_over_ranks(local.first_use_s),
          .own_bytes = static_cast<i64>(max_over_ranks(static_cast<double>(local.own_bytes)))};
}

}  // namespace mcpp
