#include "plan/rule_of_thumb.h"

#include "base/number_format.h"
#include "base/strings.h"
#include "model/flops.h"
#include "model/layer_memory.h"

namespace mcpp {
namespace {

constexpr i64 kPlainRanks = 128, kGroupedRanks = 256, kManyRanks = 1024, kLongSample = 16384;
constexpr double kShardedParameters = 1e9, kManyParameters = 50e9;

}  // namespace

std::vector<RuleOfThumb> rule_of_thumb_layout(const Hardware& hardware, const Workload& work, i64 world_size) {
  const double parameters = static_cast<double>(count_parameters(work.model).total());
  const bool is_large = parameters > kManyParameters, is_long = work.model.seq_length > kLongSample;
  const bool has_many_ranks = world_size > kManyRanks, needs_sharding = parameters > kShardedParameters;
  const Layout plain_layout{.dp = world_size};
  const double activations = static_cast<double>(
      LayerSizes(work.model, activation_setup(plain_layout, work.dtype)).layer(0).saved * work.model.num_layers);
  const bool needs_recompute = activations > 0.5 * hardware.memory_bytes();
  const i64 nearest_ranks = hardware.links.ranks.front();
  const auto answer = [](bool condition, const std::string& what) { return (condition ? "yes: " : "no: ") + what; };
  return {
      {"1. data parallelism alone up to about 128 ranks", answer(world_size <= kPlainRanks, str(world_size, " ranks"))},
      {"2. sharded weights, gradients and states (zero_stage 3) above 1 B parameters",
       answer(needs_sharding, human_count(parameters) + " parameters"), needs_sharding ? "ZeRO 3" : ""},
      {"3. recomputation where activations do not fit",
       answer(needs_recompute,
              str(human_bytes(activations), " for one sample on a rank of ", human_bytes(hardware.memory_bytes()))),
       needs_recompute ? "recompute full" : ""},
      {"4. sharding in groups, copies between them (HSDP) above 256 ranks",
       answer(needs_sharding && world_size > kGroupedRanks, str("groups of ", nearest_ranks))},
      {"5. context parallelism above 16 K tokens in a sample", answer(is_long, str(work.model.seq_length, " tokens"))},
      {"6. tensor parallelism inside a node, then pipeline parallelism, above 1 K ranks or 50 B parameters",
       answer(has_many_ranks || is_large, str("tp ", nearest_ranks, " at most; pp as memory requires")),
       has_many_ranks || is_large ? str("tp ", nearest_ranks) : ""}};
}

}  // namespace mcpp
