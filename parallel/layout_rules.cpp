#include "parallel/layout_rules.h"

#include <algorithm>
#include <numeric>

#include "base/strings.h"
#include "parallel/cp/head_exchange.h"
#include "parallel/stages.h"

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
  void add_if(bool is_violated, std::string text) {
    if (is_violated) add(std::move(text));
  }
  void add(const std::vector<std::string>& texts) { list_.insert(list_.end(), texts.begin(), texts.end()); }
  bool empty() const { return list_.empty(); }
  std::vector<std::string> take() { return std::move(list_); }

 private:
  std::vector<std::string> list_;
};

/// Checks a layout against one model, world and batch.
class LayoutChecker {
 public:
  LayoutChecker(const ModelSizes& model, const Layout& layout, i64 world_size, i64 global_batch_size)
      : model_(model),
        layout_(layout),
        world_size_(world_size),
        global_batch_size_(global_batch_size),
        sequence_parallel_(layout.sequence_parallel && layout.tp > 1),
        expert_tp_(model.num_experts > 0 ? layout.expert_tp() : 1) {}

  std::vector<std::string> run() {
    check_sizes();
    if (!conflicts_.empty()) return conflicts_.take();  // sizes below 1 rule out all other checks
    check_world();
    check_model();
    check_batch();
    check_schedule();
    check_context();
    check_zero();
    check_formats();
    return conflicts_.take();
  }

 private:
  void check_sizes() {
    if (world_size_ != kAnyWorld) conflicts_.at_least_one("world_size", world_size_);
    conflicts_.at_least_one(kTp, layout_.tp);
    conflicts_.at_least_one("pipeline_model_parallel_size", layout_.pp);
    conflicts_.at_least_one("context_parallel_size", layout_.cp);
    conflicts_.at_least_one("expert_model_parallel_size", layout_.ep);
    conflicts_.at_least_one("num_virtual_stages_per_pipeline_rank", layout_.chunks);
  }

  void check_world() {
    if (world_size_ == kAnyWorld) return;
    conflicts_.is_multiple("the number of ranks", world_size_,
                           "tensor_model_parallel_size x context_parallel_size x pipeline_model_parallel_size",
                           layout_.ranks_per_sample());
    conflicts_.is_multiple("the number of ranks", world_size_,
                           "expert_tensor_parallel_size x expert_model_parallel_size x pipeline_model_parallel_size",
                           ranks_per_expert_copy());
  }

  void check_model() {
    const i64 tp = layout_.tp;
    for (const i64 heads : model_.num_attention_heads.values())
      conflicts_.divides(kTp, tp, "num_attention_heads", heads);
    for (const i64 groups : model_.num_query_groups.values())
      conflicts_.divides_or_is_multiple(kTp, tp, "num_query_groups", groups);
    for (const i64 ffn : model_.ffn_hidden_size.values()) conflicts_.divides(kTp, tp, "ffn_hidden_size", ffn);
    check_recurrent("linear_num_key_heads", model_.linear_num_key_heads);
    check_recurrent("mamba_num_groups", model_.mamba_num_groups);
    conflicts_.divides(kTp, tp, "the padded vocabulary", model_.padded_vocab_size);
    check_stages();
    conflicts_.add_if(layout_.tp_comm_overlap && tp == 1,
                      str("tp_comm_overlap = true has no effect with one tensor-parallel rank, which does not "
                          "communicate; use ",
                          kTp, " above 1, or remove it"));
    check_sequence();
    check_head_exchange();
    check_experts();
  }

  void check_stages() {
    if (model_.num_layers == 0) return;
    const std::vector<std::string> conflicts = stage_conflicts(layout_, model_.num_layers);
    conflicts_.add(conflicts);
    if (layout_.stages.empty() || !conflicts.empty()) return;
    if (const i64 layers = count_mtp_layers(layout_); layers != model_.mtp_num_layers)
      conflicts_.add(str("pipeline_model_parallel_layout: it has ", layers,
                         " layers of multi-token prediction (m), but mtp_num_layers = ", model_.mtp_num_layers,
                         model_.mtp_num_layers == 0 ? "; remove m (evaluation and generation do not use these layers)"
                                                    : "; write one m for each before L"));
    check_mtp_stage();
  }

  /// Checks multi-token prediction in a stage without the output, which reads the word embeddings.
  void check_mtp_stage() {
    const int stage = final_norm_stage(layout_), rank = final_norm_rank(layout_);
    if (stage + 1 == layout_.stage_map().stages()) return;
    conflicts_.add_if(
        model_.ties_embeddings,
        "pipeline_model_parallel_layout: m (multi-token prediction) in a stage without L needs "
        "untie_embeddings_and_output_weights = true, because otherwise three stages would use one matrix; "
        "write m in the stage of L");
    conflicts_.add_if(stage > 0 && rank == 0 && layout_.zero_stage >= 2,
                      str("zero_stage = ", layout_.zero_stage,
                          " shards the word embeddings of the first stage (E), which m (multi-token prediction) uses "
                          "in a later stage of the same rank; use zero_stage 0 or 1, or write m in the stage of L"));
  }

  /// Recurrent mixers always exchange positions for groups of heads between context-parallel ranks.
  void check_recurrent(const char* key, i64 groups) {
    conflicts_.divides(kTp, layout_.tp, key, groups);
    if (layout_.cp > 1 && groups % layout_.tp == 0)
      conflicts_.divides("tensor_model_parallel_size x context_parallel_size", layout_.tp * layout_.cp, key, groups);
  }

  /// Suggests changing either side, because the seq_length of an existing model is fixed.
  void check_sequence() {
    const auto step_of = [&](i64 size) { return sequence_step(size, layout_.tp, sequence_parallel_); };
    const i64 cp = layout_.cp, step = step_of(cp);
    if (model_.seq_length == 0 || model_.seq_length % step == 0) return;
    std::string text = str("seq_length = ", model_.seq_length, " is not a multiple of ");
    if (!sequence_parallel_)
      text += "2 x context_parallel_size";
    else if (cp == 1)
      text += "tensor_model_parallel_size (sequence_parallel)";
    else
      text += "both 2 and tensor_model_parallel_size (sequence_parallel) x context_parallel_size";
    text += str(" = ", step, "; ", format_nearest_multiples(step, model_.seq_length));
    std::vector<i64> sizes;
    for (i64 size = 1; size <= 2 * cp; ++size)
      if (size != cp && model_.seq_length % step_of(size) == 0) sizes.push_back(size);
    if (cp > 1 && !sizes.empty())
      text += str("; with context_parallel_size ", join_alternatives(sizes), " it is valid");
    conflicts_.add(text);
  }

  /// Heads are exchanged after tensor parallelism has divided them.
  void check_head_exchange() {
    const i64 tp = layout_.tp, ranks = layout_.cp_heads();
    if (ranks == 1) return;
    const char* size = "the number of ranks that exchange heads (cp_comm_type)";
    for (std::size_t kind = 0; kind < model_.num_attention_heads.values().size(); ++kind) {
      const i64 heads = model_.num_attention_heads.values()[kind], groups = model_.num_query_groups.values()[kind];
      if (heads % tp != 0) continue;
      conflicts_.divides(size, ranks, "the attention heads of a tensor-parallel rank", heads / tp);
      conflicts_.divides_or_is_multiple(size, ranks, "the query groups of a tensor-parallel rank",
                                        std::max<i64>(groups / tp, 1));
    }
  }

  void check_experts() {
    if (model_.num_experts == 0) {
      conflicts_.add_if(layout_.ep > 1, str("expert_model_parallel_size = ", layout_.ep,
                                            " needs a model with experts; without experts it must be 1"));
      constexpr const char* kNeedsExperts = " needs a model with experts (model.num_experts)";
      conflicts_.add_if(layout_.etp != 0, str("expert_tensor_parallel_size", kNeedsExperts));
      conflicts_.add_if(layout_.dispatcher != Layout{}.dispatcher, str("moe_token_dispatcher_type", kNeedsExperts));
      conflicts_.add_if(layout_.dispatch_node_ranks != 0, str("moe_dispatch_node_ranks", kNeedsExperts));
      conflicts_.add_if(layout_.overlap_moe_expert_parallel_comm, str(kOverlapsExperts, kNeedsExperts));
      return;
    }
    conflicts_.add_if(layout_.dispatch_node_ranks != 0 && layout_.dispatcher != TokenDispatcherType::Hierarchical,
                      str("moe_dispatch_node_ranks = ", layout_.dispatch_node_ranks,
                          " has an effect only with moe_token_dispatcher_type = \"hierarchical\"; use that dispatcher, "
                          "or remove it"));
    check_expert_overlap();
    conflicts_.divides("expert_model_parallel_size", layout_.ep, "num_experts", model_.num_experts);
    conflicts_.divides("expert_tensor_parallel_size", expert_tp_, "moe_ffn_hidden_size", model_.moe_ffn_hidden_size);
    if (layout_.tp > 1 && !sequence_parallel_)  // each rank still routes a part of the tokens
      conflicts_.is_multiple("seq_length", model_.seq_length,
                             "tensor_model_parallel_size x context_parallel_size (experts)", layout_.tp * layout_.cp);
  }

  void check_expert_overlap() {
    if (!layout_.overlap_moe_expert_parallel_comm) return;
    conflicts_.add_if(layout_.ep * expert_tp_ == 1,
                      str(kOverlapsExperts,
                          " has no effect if a rank has all experts: no tokens are exchanged; use "
                          "expert_model_parallel_size above 1, or remove it"));
    conflicts_.add_if(
        !can_combine_passes(layout_.schedule),
        str(kOverlapsExperts, " needs adjacent forward and backward passes, which ", enum_name(layout_.schedule),
            " does not have; use pipeline_schedule ", kinds_with_combined_passes()));
    conflicts_.add_if(
        layout_.zero_stage == 3,
        str(kOverlapsExperts,
            " alternates between two passes, but zero_stage = 3 gathers the weights of one pass at a time; use "
            "zero_stage 0, 1 or 2"));
  }

  void check_batch() {
    const i64 b = layout_.micro_batch_size;
    if (world_size_ == kAnyWorld) {
      if (b > 0) conflicts_.is_multiple("global_batch_size", global_batch_size_, "micro_batch_size", b);
      return;
    }
    constexpr const char* kInstances = "num_distributed_optimizer_instances";
    const i64 copies = dp() * layout_.cp;
    conflicts_.divides(
        kInstances, layout_.instances,
        layout_.cp == 1 ? "the number of data-parallel ranks" : "the number of data-parallel x context-parallel ranks",
        copies);
    if (model_.num_experts > 0 && world_size_ % ranks_per_expert_copy() == 0)
      conflicts_.divides(kInstances, layout_.instances, "the number of expert-data-parallel ranks",
                         world_size_ / ranks_per_expert_copy());
    check_nodes(copies / std::max<i64>(layout_.instances, 1));
    if (global_batch_size_ > 0 && b > 0 && dp() > 0)
      conflicts_.is_multiple("global_batch_size", global_batch_size_,
                             str("micro_batch_size x data-parallel ranks (", dp(), ")"), b * dp());
  }

  /// `shards` is the number of ranks that share the weights or their states.
  void check_nodes(i64 shards) {
    constexpr const char* kSize = "zero_hpz_partition_size";
    const i64 size = layout_.node_ranks;
    if (size == 1) return;
    conflicts_.divides(kSize, size, "the number of ranks that share the weights", shards);
    conflicts_.add_if(
        size == shards,
        str(kSize, " = ", size, " must be smaller than the number of ranks that share the weights or their states; ",
            "use a proper divisor of it, or 1"));
  }

  /// Checks the schedule of a layout without other conflicts.
  void check_schedule() {
    if (!conflicts_.empty() || world_size_ == kAnyWorld || global_batch_size_ == 0) return;
    conflicts_.add(layout_.schedule_conflicts(global_batch_size_ / (layout_.micro_batch_size * dp())));
  }

  /// Returns hierarchy sizes that the heads allow, "such as [2, 4]", or what to do if there are none.
  std::string possible_hierarchy() const {
    const i64 cp = layout_.cp, tp = layout_.tp;
    for (i64 ranks = 2; ranks < cp; ++ranks) {
      if (cp % ranks == 0 && model_.can_exchange_heads(ranks, tp))
        return str(", such as [", ranks, ", ", cp / ranks, "]");
    }
    return str("; no two such sizes above 1 are possible for ", model_.num_attention_heads.first() / tp, " heads in ",
               std::max<i64>(model_.num_query_groups.first() / tp, 1),
               " query groups on a tensor-parallel rank: use \"p2p\" or \"all_gather\"");
  }

  void check_context() {
    const std::vector<i64>& sizes = layout_.cp_hierarchy;
    const bool is_hierarchical = layout_.cp_comm_type == CpCommType::A2aP2p;
    if (is_hierarchical && (sizes.size() != 2 || sizes[0] * sizes[1] != layout_.cp))
      conflicts_.add(
          str("cp_comm_type = \"a2a+p2p\" needs hierarchical_context_parallel_sizes = [ranks that exchange heads, "
              "members of the ring] with a product of context_parallel_size = ",
              layout_.cp, possible_hierarchy()));
    conflicts_.add_if(!is_hierarchical && !sizes.empty(),
                      str("hierarchical_context_parallel_sizes has no effect with cp_comm_type = \"",
                          enum_name(layout_.cp_comm_type), "\"; leave it empty, or use \"a2a+p2p\""));
  }

  void check_zero() {
    const i64 zero = layout_.zero_stage, instances = layout_.instances;
    if (zero >= 2 && row_of(layout_.schedule).splits_backward)
      conflicts_.add(str("zero_stage = ", zero, " reduces gradients at the end of each layer's backward pass, but ",
                         enum_name(layout_.schedule),
                         " computes them later; use zero_stage 0 or 1, or pipeline_schedule ",
                         kinds_with_fused_backward()));
    conflicts_.add_if(
        instances > 1 && zero == 0,
        str("num_distributed_optimizer_instances = ", instances,
            " has no effect with zero_stage = 0, where every rank holds all state; use zero_stage 1, 2 or 3"));
    const bool sums_in_steps = zero > 0 && layout_.formats.grad_reduce_format() != GradReduceFormat::Full;
    if (layout_.node_ranks > 1 && zero != 3 && !sums_in_steps)
      conflicts_.add(str(
          "zero_hpz_partition_size = ", layout_.node_ranks, " has no effect with zero_stage = ", zero,
          ", where every rank has all weights; use zero_stage 3",
          zero == 0 ? ""
                    : str(", or ", kGradientsInBf16, " or ", kGradientsInBytes, ", which it splits into two steps")));
  }

  void check_formats() {
    const CommFormats& formats = layout_.formats;
    const bool in_bf16 = formats.grad_reduce_dtype == GradDType::Bf16, in_bytes = formats.quantized_gradients;
    const auto needs_zero = [&](bool is_set, const char* setting, const char* why) {
      conflicts_.add_if(is_set && layout_.zero_stage == 0,
                        str(setting, " has no effect with zero_stage = 0, ", why, "; use zero_stage 1, 2 or 3"));
    };
    constexpr const char* kAllGradients = "where every rank receives all gradients";
    needs_zero(formats.quantized_weights, "zero_quantized_weights = true", "where no weights are sent");
    needs_zero(formats.fp8_param_gather, "fp8_param_gather = true", "where no weights are sent");
    conflicts_.add_if(
        formats.fp8_param_gather && formats.quantized_weights,
        "fp8_param_gather = true and zero_quantized_weights = true are two ways to send the same weights; use "
        "one of them");
    needs_zero(in_bytes, kGradientsInBytes, kAllGradients);
    needs_zero(in_bf16, kGradientsInBf16, kAllGradients);
    const auto exclude = [&](bool are_both_set, const std::string& first, const char* second) {
      conflicts_.add_if(are_both_set,
                        str(first, " and ", second, " are two ways to send the same gradients; use one of them"));
    };
    const i64 rank = formats.power_sgd_rank;
    const std::string factors = str("power_sgd_rank = ", rank);
    exclude(rank > 0 && in_bytes, factors, kGradientsInBytes);
    exclude(rank > 0 && in_bf16, factors, kGradientsInBf16);
    exclude(in_bytes && in_bf16, kGradientsInBytes, kGradientsInBf16);
    conflicts_.add_if(rank > 0 && layout_.zero_stage >= 2,
                      str(factors, " needs unsharded gradients, but zero_stage = ", layout_.zero_stage,
                          " shards them; use zero_stage 0 or 1, or zero_quantized_gradients"));
    conflicts_.add_if(layout_.power_sgd_start_iter > 0 && rank == 0,
                      str("power_sgd_start_iter = ", layout_.power_sgd_start_iter,
                          " is only read with power_sgd_rank; set that, or remove it"));
  }

  static constexpr const char* kTp = "tensor_model_parallel_size";
  static constexpr const char* kOverlapsExperts = "overlap_moe_expert_parallel_comm = true";
  static constexpr const char* kGradientsInBytes = "zero_quantized_gradients = true";
  static constexpr const char* kGradientsInBf16 = "grad_reduce_dtype = \"bf16\"";

  /// Rounded down if the world is not divisible, which check_world() reports.
  i64 dp() const { return world_size_ / layout_.ranks_per_sample(); }
  i64 ranks_per_expert_copy() const { return expert_tp_ * layout_.ep * layout_.pp; }

  const ModelSizes& model_;
  const Layout& layout_;
  i64 world_size_, global_batch_size_;
  bool sequence_parallel_;
  i64 expert_tp_;
  Conflicts conflicts_;
};

}  // namespace

bool ModelSizes::can_exchange_heads(i64 ranks, i64 tp) const {
  for (std::size_t kind = 0; kind < num_attention_heads.values().size(); ++kind)
    if (!HeadExchange::is_possible(ranks, num_attention_heads.values()[kind] / tp,
                                   std::max<i64>(num_query_groups.values()[kind] / tp, 1)))
      return false;
  return true;
}

i64 sequence_step(i64 cp, i64 tp, bool sequence_parallel) {
  return std::lcm<i64>(cp == 1 ? 1 : 2, sequence_parallel ? tp : 1) * cp;
}

std::vector<std::string> layout_conflicts(const ModelSizes& model, const Layout& layout, i64 world_size,
                                          i64 global_batch_size) {
  return LayoutChecker(model, layout, world_size, global_batch_size).run();
}

}  // namespace mcpp
