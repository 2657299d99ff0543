#include "parallel/layout.h"

#include <algorithm>
#include <numeric>

#include "base/strings.h"

namespace mcpp {
namespace {

/// Formats a suggestion of one or two values.
std::string format_nearest(const std::vector<i64>& list) {
  std::string text = list.size() == 1 ? "the nearest that does is " : "the nearest that do are ";
  for (std::size_t i = 0; i < list.size(); ++i) text += str(i > 0 ? " and " : "", list[i]);
  return text;
}

std::string format_nearest_multiples(i64 step, i64 value) {
  const std::vector<i64> list = nearest_multiples(step, value);
  return list.size() == 1 ? str("the nearest multiple is ", list[0])
                          : str("the nearest multiples are ", list[0], " and ", list[1]);
}

/// Collects violated rules.
class Conflicts {
 public:
  /// Requires that `size` divides `dividend`; suggests values of `size`.
  void divides(const char* size_name, i64 size, const std::string& dividend_name, i64 dividend) {
    if (dividend == 0 || size < 1 || dividend % size == 0) return;
    list_.push_back(str(size_name, " = ", size, " does not divide ", dividend_name, " = ", dividend, "; ",
                        format_nearest(nearest_divisors(dividend, size))));
  }
  /// Requires that `size` divides `dividend` or is a multiple of it; suggests values of `size`.
  void divides_or_is_multiple(const char* size_name, i64 size, const std::string& dividend_name, i64 dividend) {
    if (dividend == 0 || size < 1 || dividend % size == 0 || size % dividend == 0) return;
    list_.push_back(
        str(size_name, " = ", size, " neither divides ", dividend_name, " = ", dividend, " nor is a multiple of it; ",
            format_nearest(size < dividend ? nearest_divisors(dividend, size) : nearest_multiples(dividend, size))));
  }
  /// Requires that `dividend` is a multiple of `step`; suggests values of `dividend`.
  void is_multiple(const char* dividend_name, i64 dividend, const std::string& step_name, i64 step) {
    if (dividend == 0 || step < 1 || dividend % step == 0) return;
    list_.push_back(str(dividend_name, " = ", dividend, " is not a multiple of ", step_name, " = ", step, "; ",
                        format_nearest_multiples(step, dividend)));
  }
  void at_least_one(const char* name, i64 value) {
    if (value < 1) list_.push_back(str(name, " = ", value, " must be at least 1"));
  }
  void add(std::string text) { list_.push_back(std::move(text)); }
  void add(const std::vector<std::string>& texts) { list_.insert(list_.end(), texts.begin(), texts.end()); }
  std::vector<std::string> take() { return std::move(list_); }

 private:
  std::vector<std::string> list_;
};

void check_sizes(const LayoutRules& rules, Conflicts& conflicts) {
  const ParallelSizes& s = rules.sizes;
  if (rules.world_size != 0) conflicts.at_least_one("world_size", rules.world_size);
  conflicts.at_least_one("tensor_model_parallel_size", s.tensor_model_parallel_size);
  conflicts.at_least_one("pipeline_model_parallel_size", s.pipeline_model_parallel_size);
  conflicts.at_least_one("context_parallel_size", s.context_parallel_size);
  conflicts.at_least_one("expert_model_parallel_size", s.expert_model_parallel_size);
  conflicts.at_least_one("expert_tensor_parallel_size", s.expert_tensor_parallel_size);
  conflicts.at_least_one("num_virtual_stages_per_pipeline_rank", rules.stages.virtual_stages);
}

void check_world(const LayoutRules& rules, Conflicts& conflicts) {
  if (rules.world_size == 0) return;
  const ParallelSizes& s = rules.sizes;
  const i64 tp = s.tensor_model_parallel_size, cp = s.context_parallel_size, pp = s.pipeline_model_parallel_size;
  conflicts.is_multiple("the number of ranks", rules.world_size,
                        "tensor_model_parallel_size x context_parallel_size x pipeline_model_parallel_size",
                        tp * cp * pp);
  conflicts.is_multiple("the number of ranks", rules.world_size,
                        "expert_tensor_parallel_size x expert_model_parallel_size x pipeline_model_parallel_size",
                        s.expert_tensor_parallel_size * s.expert_model_parallel_size * pp);
}

/// Heads are exchanged after tensor parallelism has divided them.
void check_head_exchange(const LayoutRules& rules, Conflicts& conflicts) {
  const i64 tp = rules.sizes.tensor_model_parallel_size, ranks = rules.sizes.context_parallel_heads;
  if (ranks == 1) return;
  const char* size = "the number of ranks that exchange heads (cp_comm_type)";
  for (std::size_t kind = 0; kind < rules.num_attention_heads.values().size(); ++kind) {
    const i64 heads = rules.num_attention_heads.values()[kind], groups = rules.num_query_groups.values()[kind];
    if (heads % tp != 0) continue;
    conflicts.divides(size, ranks, "the attention heads of a tensor-parallel rank", heads / tp);
    conflicts.divides_or_is_multiple(size, ranks, "the query groups of a tensor-parallel rank",
                                     std::max<i64>(groups / tp, 1));
  }
}

/// Suggests changing either side, because the seq_length of an existing model is fixed.
void check_sequence(const LayoutRules& rules, Conflicts& conflicts) {
  const auto step_of = [&](i64 size) {
    return sequence_step(size, rules.sizes.tensor_model_parallel_size, rules.sequence_parallel);
  };
  const i64 cp = rules.sizes.context_parallel_size, step = step_of(cp);
  if (rules.seq_length == 0 || rules.seq_length % step == 0) return;
  std::string text = str("seq_length = ", rules.seq_length, " is not a multiple of ");
  if (!rules.sequence_parallel)
    text += "2 x context_parallel_size";
  else if (cp == 1)
    text += "tensor_model_parallel_size (sequence_parallel)";
  else
    text += "both 2 and tensor_model_parallel_size (sequence_parallel) x context_parallel_size";
  text += str(" = ", step, "; ", format_nearest_multiples(step, rules.seq_length));
  std::vector<i64> sizes;
  for (i64 size = 1; size <= 2 * cp; ++size)
    if (size != cp && rules.seq_length % step_of(size) == 0) sizes.push_back(size);
  if (cp > 1 && !sizes.empty()) text += str("; with context_parallel_size ", join_alternatives(sizes), " it is valid");
  conflicts.add(text);
}

void check_experts(const LayoutRules& rules, Conflicts& conflicts) {
  const ParallelSizes& s = rules.sizes;
  if (rules.num_experts == 0) {
    if (s.expert_model_parallel_size > 1)
      conflicts.add(str("expert_model_parallel_size = ", s.expert_model_parallel_size,
                        " needs a model with experts; without experts it must be 1"));
    return;
  }
  const i64 tp = s.tensor_model_parallel_size, cp = s.context_parallel_size;
  conflicts.divides("expert_model_parallel_size", s.expert_model_parallel_size, "num_experts", rules.num_experts);
  conflicts.divides("expert_tensor_parallel_size", s.expert_tensor_parallel_size, "moe_ffn_hidden_size",
                    rules.moe_ffn_hidden_size);
  if (tp > 1 && !rules.sequence_parallel)  // each rank still routes a part of the tokens
    conflicts.is_multiple("seq_length", rules.seq_length,
                          "tensor_model_parallel_size x context_parallel_size (experts)", tp * cp);
}

void check_model(const LayoutRules& rules, Conflicts& conflicts) {
  const ParallelSizes& s = rules.sizes;
  const i64 tp = s.tensor_model_parallel_size;
  constexpr const char* kTp = "tensor_model_parallel_size";
  for (const i64 heads : rules.num_attention_heads.values()) conflicts.divides(kTp, tp, "num_attention_heads", heads);
  for (const i64 groups : rules.num_query_groups.values())
    conflicts.divides_or_is_multiple(kTp, tp, "num_query_groups", groups);
  for (const i64 ffn : rules.ffn_hidden_size.values()) conflicts.divides(kTp, tp, "ffn_hidden_size", ffn);
  conflicts.divides(kTp, tp, "the padded vocabulary", rules.padded_vocab_size);
  if (rules.stages.num_layers > 0) {
    StageSplit stages = rules.stages;
    stages.pipeline_model_parallel_size = s.pipeline_model_parallel_size;
    conflicts.add(stage_conflicts(stages));
  }
  check_sequence(rules, conflicts);
  check_head_exchange(rules, conflicts);
  check_experts(rules, conflicts);
}

/// `shards` is the number of ranks that share the weights or their states.
void check_nodes(const ParallelSizes& s, i64 shards, Conflicts& conflicts) {
  constexpr const char* kSize = "zero_hpz_partition_size";
  const i64 size = s.zero_hpz_partition_size;
  if (size == 1) return;
  conflicts.divides(kSize, size, "the number of ranks that share the weights", shards);
  if (size == shards)
    conflicts.add(str(kSize, " = ", size,
                      " must be smaller than the number of ranks that share the weights or their states; ",
                      "use a proper divisor of it, or 1"));
}

void check_batch(const LayoutRules& rules, Conflicts& conflicts) {
  const ParallelSizes& s = rules.sizes;
  const i64 dp = s.data_parallel_size(rules.world_size);  // a remainder is reported by check_world
  if (rules.world_size == 0) {
    if (rules.micro_batch_size > 0)
      conflicts.is_multiple("global_batch_size", rules.global_batch_size, "micro_batch_size", rules.micro_batch_size);
    return;
  }
  conflicts.divides("num_distributed_optimizer_instances", s.num_distributed_optimizer_instances,
                    s.context_parallel_size == 1 ? "the number of data-parallel ranks"
                                                 : "the number of data-parallel x context-parallel ranks",
                    dp * s.context_parallel_size);
  if (s.has_experts && rules.world_size % s.ranks_per_expert_copy() == 0)
    conflicts.divides("num_distributed_optimizer_instances", s.num_distributed_optimizer_instances,
                      "the number of expert-data-parallel ranks", s.expert_data_parallel_size(rules.world_size));
  check_nodes(s, dp * s.context_parallel_size / std::max<i64>(s.num_distributed_optimizer_instances, 1), conflicts);
  if (rules.global_batch_size > 0 && rules.micro_batch_size > 0 && dp > 0)
    conflicts.is_multiple("global_batch_size", rules.global_batch_size,
                          "micro_batch_size x data-parallel ranks (" + std::to_string(dp) + ")",
                          rules.micro_batch_size * dp);
}

}  // namespace

i64 sequence_step(i64 context_parallel, i64 tensor_parallel, bool sequence_parallel) {
  return std::lcm<i64>(context_parallel == 1 ? 1 : 2, sequence_parallel ? tensor_parallel : 1) * context_parallel;
}

std::vector<std::string> layout_conflicts(const LayoutRules& rules) {
  Conflicts conflicts;
  check_sizes(rules, conflicts);
  std::vector<std::string> found = conflicts.take();
  if (!found.empty()) return found;  // sizes below 1 rule out all other checks
  Conflicts remaining;
  check_world(rules, remaining);
  check_model(rules, remaining);
  check_batch(rules, remaining);
  return remaining.take();
}

}  // namespace mcpp
