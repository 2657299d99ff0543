#include "plan/cost/layer_time.h"

#include <algorithm>
#include <cmath>

#include "base/integer_math.h"
#include "plan/cost/kernel_times.h"
#include "plan/cost/rank_cost_model.h"

namespace mcpp {
namespace {

/// Attention over s keys runs at s / (s + kAttentionRamp) of full speed; heads below 128 use the units less.
constexpr double kAttentionRamp = 340, kSmallHeadEfficiency = 0.72;
/// Attention's backward pass relative to its forward pass: operations, and speed.
constexpr double kBackwardWork = 2.5, kBackwardSpeed = 0.97;

constexpr double kAccumulateBytes = 4;  // bytes per element that is reduced over kernels or ranks

class Layer {
 public:
  Layer(const PredictionInput& job, const BlockSpec& block)
      : rank_(job),
        block_(block),
        hw_(job.hardware),
        program_(job.program),
        work_(job.work),
        model_(job.work.model),
        layout_(job.layout),
        collectives_(rank_.collectives()),
        element_(rank_.element_bytes()),
        tokens_(rank_.tokens()) {
    if (const AttentionSpec* attention = block_.attention()) {
      attention_ = *attention;
      heads_ = std::max<i64>(attention_.num_heads / layout_.tp, 1);
      queries_ = heads_ * attention_.head_dim;
      keys_ = std::max<i64>(attention_.num_query_groups / layout_.tp, 1) * attention_.head_dim;
    }
    if (block_.mlp()) ffn_ = block_.mlp()->ffn_hidden_size / layout_.tp;
    up_ = (model_.is_gated() ? 2 : 1) * ffn_;
  }

  UnitTime time() const {
    UnitTime t = half(LayerHalf::Attention);
    t += half(LayerHalf::Mlp);
    return t;
  }

  UnitTime half(LayerHalf layer_half) const {
    const bool is_attention = layer_half == LayerHalf::Attention;
    if (!(is_attention ? block_.has_mixer() : block_.has_feed_forward())) return {};
    UnitTime t = is_attention ? attention_branch() : block_.mlp() ? mlp_branch() : expert_time(rank_);
    t += elementwise(layer_half);
    if (work_.products == ProductType::Fp8 && (is_attention || block_.mlp())) t += fp8_overhead(layer_half);
    if (is_attention) t += context_parallel(t);
    add_selective_recompute(t, layer_half);
    return t;
  }

  /// Returns the products of the block's forward pass, by name.
  std::vector<std::pair<std::string, ProductShape>> shapes() const {
    const i64 hidden = model_.hidden_size;
    std::vector<std::pair<std::string, ProductShape>> list;
    if (block_.attention()) {
      list.push_back({"qkv", {.m = tokens_, .n = queries_ + 2 * keys_, .k = hidden}});
      list.push_back({"proj", {.m = tokens_, .n = hidden, .k = queries_}});
      if (attention_.has_output_gate) list.push_back({"gate", {.m = tokens_, .n = queries_, .k = hidden}});
    }
    if (block_.mlp()) {
      list.push_back({"fc1", {.m = tokens_, .n = up_, .k = hidden}});
      list.push_back({"fc2", {.m = tokens_, .n = hidden, .k = ffn_}});
    }
    if (block_.moe())
      for (const auto& named : expert_products(rank_)) list.push_back(named);
    return list;
  }

  UnitTime embedding() const {
    const KernelTimes& kernels = rank_.kernels();
    UnitTime t;
    t.forward.elementwise = rank_.seconds(rank_.stream_elements() * kernels.embedding.forward, 1);
    t.backward_weight.elementwise = rank_.seconds(rank_.stream_elements() * kernels.embedding.backward, 1);
    t.forward.tensor_parallel =
        layout_.tp > 1 ? collectives_.all_reduce(rank_.unsharded_bytes(), layout_.tp_group()) : 0;
    return t;
  }

  UnitTime output() const {
    const i64 vocabulary = model_.padded_vocab_size() / layout_.tp;
    UnitTime t = rank_.weight_products(tokens_, vocabulary, model_.hidden_size, work_.non_fp8_products());
    const KernelTimes& kernels = rank_.kernels();
    const double half = kernels.loss / 2 * real(tokens_) * real(vocabulary), stream = rank_.stream_elements();
    t.forward.elementwise = rank_.seconds(half + kernels.norm.forward * stream, 3);
    t.backward_input.elementwise = rank_.seconds(half + kernels.norm.backward * stream, 3);
    if (layout_.tp > 1) {
      const double gather = collectives_.all_gather(rank_.unsharded_bytes(), layout_.tp_group());
      t.forward.tensor_parallel = layout_.sequence_parallel ? gather : 0;
      t.backward_input.tensor_parallel = 2 * gather;
    }
    return t;
  }

 private:
  UnitTime attention_branch() const {
    UnitTime t = rank_.weight_products(tokens_, queries_ + 2 * keys_, model_.hidden_size, work_.products);
    t += rank_.weight_products(tokens_, model_.hidden_size, queries_, work_.products);
    if (attention_.has_output_gate) t += output_gate();
    t += program_.stores_scores ? stored_scores() : flash_attention();
    t += biases();
    t += region_communication(rank_);
    return t;
  }

  UnitTime output_gate() const {
    UnitTime t = rank_.weight_products(tokens_, queries_, model_.hidden_size, work_.products);
    const double elements = real(tokens_ * queries_);
    t.forward.elementwise = rank_.traffic_seconds(3 * elements, 1);
    t.backward_input.elementwise = rank_.traffic_seconds(5 * elements, 1);
    return t;
  }

  UnitTime mlp_branch() const {
    UnitTime t = rank_.weight_products(tokens_, up_, model_.hidden_size, work_.products);
    t += rank_.weight_products(tokens_, model_.hidden_size, ffn_, work_.products);
    t += rank_.activation(tokens_, ffn_);
    t += region_communication(rank_);
    if (model_.mlp_bias())
      t.backward_input.elementwise +=
          rank_.seconds(rank_.kernels().bias.backward * (real(tokens_ * up_) + rank_.stream_elements()), 0);
    return t;
  }

  bool uses_ring() const { return layout_.keys_group().ranks > 1 && layout_.cp_comm_type != CpCommType::AllGather; }
  /// Returns the number of keys that one kernel processes.
  i64 kernel_length() const { return uses_ring() ? model_.seq_length / layout_.keys_group().ranks : model_.seq_length; }

  /// Returns attention's operations per second.
  double attention_rate(bool is_backward) const {
    const i64 length = kernel_length(), width = attention_.head_dim;
    if (const MeasuredRates* measured = hw_.measured(work_.products))
      return measured->attention_rate(length, width, is_backward);
    const double relative_rate = work_.dtype == DType::F32 ? hw_.device.fp32_attained / hw_.device.bf16_attained : 1;
    const double s = real(length), rate = 1e12 * hw_.device.attention_attained * program_.attention * relative_rate *
                                          s / (s + kAttentionRamp) * (width >= 128 ? 1 : kSmallHeadEfficiency);
    return is_backward ? rate * kBackwardSpeed : rate;
  }

  UnitTime flash_attention() const {
    const double flops = 4 * real(tokens_) * mean_attended_keys(work_, attention_) * real(queries_);
    const double scores = model_.attention_dropout > 0 ? flops / (4 * real(attention_.head_dim)) : 0;
    const PassSeconds& dropped = rank_.kernels().dropped_score;
    UnitTime t;
    t.forward.attention = rank_.seconds(flops / attention_rate(false) + scores * dropped.forward, 1);
    t.backward_input.attention =
        rank_.seconds(kBackwardWork * flops / attention_rate(true) + scores * dropped.backward, 2);
    return t;
  }

  /// Returns the time of two products in forward and four in backward over all keys, and of passes over the scores.
  UnitTime stored_scores() const {
    const i64 s = model_.seq_length, d = attention_.head_dim, batch = heads_ * layout_.micro_batch_size;
    const auto product_time = [&](i64 n, i64 k) {
      return rank_.product_seconds(ProductType::Bf16, {.m = s, .n = n, .k = k, .batch = batch}, element_,
                                   ProductPass::Forward);
    };
    const double scores = real(batch) * real(s) * real(s);
    UnitTime t;
    t.forward.attention =
        product_time(s, d) + product_time(d, s) + rank_.traffic_seconds(program_.scores.forward * scores, 2);
    t.backward_input.attention =
        product_time(s, d) + 3 * product_time(d, s) + rank_.traffic_seconds(program_.scores.backward * scores, 2);
    return t;
  }

  /// Returns the time of bias additions that are not fused and of all bias gradients.
  UnitTime biases() const {
    const PassSeconds& bias = rank_.kernels().bias;
    const double qkv = model_.qkv_bias() ? real(tokens_) * real(queries_ + 2 * keys_) : 0;
    const double proj = model_.attention_output_bias() ? rank_.stream_elements() : 0;
    UnitTime t;
    t.forward.elementwise = rank_.seconds(bias.forward * qkv, 0);
    t.backward_input.elementwise = rank_.seconds(bias.backward * (qkv + proj), 0);
    return t;
  }

  /// Returns the time of a norm, a residual and, for attention, also of the heads.
  UnitTime elementwise(LayerHalf half) const {
    const bool is_attention = half == LayerHalf::Attention;
    const KernelTimes& kernels = rank_.kernels();
    const double qkv = is_attention ? real(tokens_) * real(queries_ + 2 * keys_) : 0, stream = rank_.stream_elements();
    UnitTime t;
    t.forward.elementwise =
        rank_.seconds(stream * (kernels.norm.forward + kernels.residual.forward) + kernels.heads.forward * qkv,
                      program_.kernels.forward / 2);
    t.backward_input.elementwise =
        rank_.seconds(stream * (kernels.norm.backward + kernels.residual.backward) + kernels.heads.backward * qkv,
                      program_.kernels.backward / 2);
    return t;
  }

  /// Returns the overhead of fp8 products.
  UnitTime fp8_overhead(LayerHalf half) const {
    const bool is_attention = half == LayerHalf::Attention;
    const double hidden = real(tokens_ * model_.hidden_size), end = real(tokens_ * (is_attention ? queries_ : ffn_));
    const double weights = real(model_.hidden_size) * real(is_attention ? 2 * queries_ + 2 * keys_ : up_ + ffn_);
    const double operands = hidden + end + weights;
    const double gradients = hidden + real(tokens_) * real(is_attention ? queries_ + 2 * keys_ : up_);
    UnitTime t;
    t.forward.elementwise = rank_.traffic_seconds(program_.quantize.forward * operands, 0);
    t.backward_input.elementwise =
        rank_.traffic_seconds(program_.quantize.backward * gradients + program_.requantize * operands, 0);
    add_scale_all_reduce(t);
    return t;
  }

  /// Adds the max all-reduces of the fp8 scales of the two linear layers of half a layer, in both passes: a few bytes
  /// among all ranks that hold parts of their tensors.
  void add_scale_all_reduce(UnitTime& t) const {
    constexpr double kBytes = 8, kLinearLayers = 2;
    const auto seconds = [&](i64 ranks, const RankGroup& group) {
      return ranks > 1 ? kLinearLayers * collectives_.all_reduce(kBytes, group) : 0;
    };
    const double tensor_parallel = seconds(layout_.tp, layout_.tp_group());
    const double context_parallel = seconds(layout_.cp, layout_.cp_group());
    for (PassTime* pass : {&t.forward, &t.backward_input})
      pass->tensor_parallel += tensor_parallel, pass->context_parallel += context_parallel;
  }

  /// Returns the elements of keys per token that a rank holds before a head exchange. Query groups are duplicated if
  /// there are fewer of them than ranks.
  i64 exchanged_keys() const {
    const i64 groups = keys_ / attention_.head_dim;
    return groups % layout_.cp_heads() == 0 ? keys_ : layout_.cp_heads() * attention_.head_dim;
  }
  double key_bytes() const { return 2 * real(tokens_ * exchanged_keys()) * element_; }
  /// Gradients of keys are sent in fp32.
  double key_gradient_bytes() const { return key_bytes() * kAccumulateBytes / element_; }

  UnitTime context_parallel(const UnitTime& partial_time) const {
    UnitTime t = head_exchange_time();
    if (layout_.keys_group().ranks > 1) t += uses_ring() ? ring(partial_time) : key_gather_time();
    return t;
  }

  /// Returns the time to send queries, keys and values and to receive the output, and of the reverse for gradients.
  UnitTime head_exchange_time() const {
    UnitTime t;
    if (layout_.cp_heads() == 1) return t;
    const double query_bytes = 2 * real(tokens_ * queries_) * element_;
    const bool shares_groups = exchanged_keys() != keys_;  // their gradients need a sum over several ranks
    const auto exchange = [&](double bytes) { return collectives_.all_to_all(bytes, layout_.heads_group()); };
    t.forward.context_parallel = exchange(query_bytes + key_bytes());
    t.backward_input.context_parallel = exchange(query_bytes + (shares_groups ? key_gradient_bytes() : key_bytes()));
    return t;
  }

  UnitTime key_gather_time() const {
    const RankGroup group = layout_.keys_group();
    const double ranks = real(group.ranks), gather = collectives_.all_gather(ranks * key_bytes(), group);
    UnitTime t;
    t.forward.context_parallel = gather;
    t.backward_input.context_parallel = gather + collectives_.reduce_scatter(ranks * key_gradient_bytes(), group);
    return t;
  }

  /// Returns the exposed time of the ring: keys and values travel concurrently with compute. In backward their
  /// gradients follow, and the last hop back to the owner is exposed.
  UnitTime ring(const UnitTime& partial_time) const {
    const RankGroup group = layout_.keys_group();
    const double hops = real(group.ranks - 1), keys = collectives_.message(key_bytes(), group.stride),
                 gradients = collectives_.message(key_gradient_bytes(), group.stride);
    const auto exposed = [&](double sent, double computed) {
      return std::max(hw_.communication_slowdown() * sent, sent - computed);
    };
    UnitTime t = merge_time(hops);
    t.forward.context_parallel += exposed(hops * keys, partial_time.forward.attention);
    t.backward_input.context_parallel +=
        exposed(hops * keys + (hops - 1) * gradients, partial_time.backward_input.attention) + gradients;
    return t;
  }

  /// Returns the time to merge the fp32 results of each hop after the first: outputs, and gradients of queries, keys
  /// and values.
  UnitTime merge_time(double hops) const {
    const double wide = kAccumulateBytes / element_, queries = real(tokens_ * queries_);
    UnitTime t;
    t.forward.context_parallel = rank_.traffic_seconds(hops * 3 * wide * queries, hops);
    t.backward_input.context_parallel =
        rank_.traffic_seconds(hops * 3 * wide * (queries + 2 * real(tokens_ * exchanged_keys())), 2 * hops);
    return t;
  }

  /// Adds the cost of selective recomputation.
  void add_selective_recompute(UnitTime& t, LayerHalf half) const {
    const Recompute& r = layout_.recompute;
    if (r.granularity != Recompute::Granularity::Selective) return;
    const bool is_mlp = half == LayerHalf::Mlp;
    PassTime recompute_time;
    if (r.core_attn) recompute_time.attention = t.forward.attention;
    if (r.layernorm)
      recompute_time.elementwise += rank_.seconds(rank_.stream_elements() * rank_.kernels().norm.forward, 1);
    if (r.mlp_act && is_mlp && block_.mlp())
      recompute_time.elementwise += rank_.activation(tokens_, ffn_).forward.elementwise + rank_.seconds(0, 1);
    if (r.moe_act && is_mlp && block_.moe())
      recompute_time.elementwise += expert_activation_seconds(rank_) + rank_.seconds(0, 1);
    if (program_.recomputed_products > 0) {
      recompute_time.products = program_.recomputed_products * t.forward.products;
      recompute_time.elementwise = t.forward.elementwise;
    }
    t.backward_input += recompute_time;
  }

  RankCostModel rank_;
  BlockSpec block_;
  const Hardware& hw_;
  const KernelTraits& program_;
  const Workload& work_;
  const ModelConfig& model_;
  const Layout& layout_;
  const Collectives& collectives_;
  double element_;
  i64 tokens_;
  AttentionSpec attention_;  // of block_, if it has one; the sizes below are this rank's
  i64 heads_ = 0, queries_ = 0, keys_ = 0, ffn_ = 0, up_ = 0;
};

}  // namespace

UnitTime layer_time(const PredictionInput& job, const BlockSpec& block) {
  return Layer(job, block).time();
}

UnitTime half_time(const PredictionInput& job, const BlockSpec& block, LayerHalf half) {
  return Layer(job, block).half(half);
}

std::vector<std::pair<std::string, ProductShape>> layer_products(const PredictionInput& job) {
  std::vector<std::pair<std::string, ProductShape>> list;
  for (const BlockSpec& block : BlockKinds(job.work.model).kinds)
    for (const auto& product : Layer(job, block).shapes())
      if (std::ranges::find(list, product) == list.end()) list.push_back(product);
  return list;
}

UnitTime embedding_time(const PredictionInput& job) {
  return Layer(job, {}).embedding();
}

UnitTime output_time(const PredictionInput& job) {
  return Layer(job, {}).output();
}

namespace {

/// Kernels launched for routing and for moving rows.
constexpr double kForwardKernels = 14, kBackwardKernels = 12;

class ExpertLayer {
 public:
  explicit ExpertLayer(const RankCostModel& rank)
      : rank_(rank),
        model_(rank.model()),
        layout_(rank.layout()),
        imbalance_(layout_.ep > 1 ? rank.job().work.expert_imbalance : 1),
        tokens_(ceil_div(rank.tokens(), layout_.tp)),
        choices_(tokens_ * model_.moe.router_topk),
        local_experts_(model_.moe.num_experts / layout_.ep),
        width_(model_.moe_ffn() / layout_.expert_tp()),
        // Rows from all ranks of the exchange, divided evenly among the expert shards.
        rows_per_expert_(
            std::max<i64>(1, std::llround(imbalance_ * real(choices_ * layout_.expert_tp()) / real(local_experts_)))) {}

  UnitTime time() const {
    const ProductType type = rank_.job().work.non_fp8_products();
    const i64 hidden = model_.hidden_size;
    UnitTime t = router();
    t += rank_.weight_products(rows_per_expert_, up(width_), hidden, type, local_experts_);
    t += rank_.weight_products(rows_per_expert_, hidden, width_, type, local_experts_);
    t += rank_.activation(rows(), width_);
    t += row_move_time();
    t += exchange();
    t += shared();
    return t;
  }

  double activation_seconds() const { return rank_.activation(rows(), width_).forward.elementwise; }

  std::vector<std::pair<std::string, ProductShape>> products() const {
    const i64 hidden = model_.hidden_size;
    return {{"expert fc1", {.m = rows_per_expert_, .n = up(width_), .k = hidden, .batch = local_experts_}},
            {"expert fc2", {.m = rows_per_expert_, .n = hidden, .k = width_, .batch = local_experts_}}};
  }

 private:
  i64 up(i64 width) const { return (model_.is_gated() ? 2 : 1) * width; }
  i64 rows() const { return rows_per_expert_ * local_experts_; }
  bool has_exchange() const { return layout_.ep * layout_.expert_tp() > 1; }

  /// Returns the time of a thin fp32 product over tokens that are converted to fp32.
  UnitTime router() const {
    const Hardware& hardware = rank_.job().hardware;
    const double elements = real(tokens_) * real(model_.hidden_size), wide = 4;
    const double flops = 2 * elements * real(model_.moe.num_experts);
    const double product_time =
        rank_.seconds(std::max(flops / hardware.product_flops(ProductType::Fp32),
                               hardware.traffic_seconds(elements * (rank_.element_bytes() + 2 * wide))),
                      2);
    UnitTime t;
    t.forward.products = t.backward_input.products = t.backward_weight.products = product_time;
    return t;
  }

  /// Returns the time to sort rows by expert and restore their order, in both directions, and to sum them.
  UnitTime row_move_time() const {
    const double moved = real(model_.hidden_size) * (2 * real(choices_) + (has_exchange() ? 2 * real(rows()) : 0));
    UnitTime t;
    t.forward.elementwise = rank_.seconds(moved * rank_.kernels().copy, kForwardKernels);
    t.backward_input.elementwise = rank_.seconds(moved * rank_.kernels().copy, kBackwardKernels);
    return t;
  }

  /// Returns the time of dispatch and combine, in both passes.
  UnitTime exchange() const {
    const Collectives& collectives = rank_.collectives();
    const RankGroup group = layout_.exchange_group();
    const double row = real(model_.hidden_size) * rank_.element_bytes();
    UnitTime t;
    if (layout_.dispatcher == TokenDispatcherType::AllGather)
      t.forward.expert_parallel = 2 * collectives.all_gather(real(tokens_ * group.ranks) * row, group);
    else
      t.forward.expert_parallel =
          2 * collectives.all_to_all(imbalance_ * real(choices_ * layout_.expert_tp()) * row, group) +
          collectives.all_gather(real(model_.moe.num_experts * group.ranks) * 4,
                                 group);  // number of rows per destination
    t.backward_input.expert_parallel = t.forward.expert_parallel;
    // Each rank routed its own part of the tokens and needs the results of the others.
    if (layout_.tp > 1 && !layout_.sequence_parallel)
      t.forward.tensor_parallel = t.backward_input.tensor_parallel =
          collectives.all_gather(rank_.unsharded_bytes(), layout_.tp_group());
    return t;
  }

  UnitTime shared() const {
    const i64 width = model_.moe.shared_expert_intermediate_size / layout_.tp, hidden = model_.hidden_size;
    UnitTime t;
    if (width == 0) return t;
    const ProductType type = rank_.job().work.products;
    t = rank_.weight_products(rank_.tokens(), up(width), hidden, type);
    t += rank_.weight_products(rank_.tokens(), hidden, width, type);
    t += rank_.activation(rank_.tokens(), width);
    t += region_communication(rank_);
    return t;
  }

  const RankCostModel& rank_;
  const ModelConfig& model_;
  const Layout& layout_;
  double imbalance_;
  i64 tokens_, choices_, local_experts_, width_, rows_per_expert_;
};

}  // namespace

UnitTime expert_time(const RankCostModel& rank) {
  return ExpertLayer(rank).time();
}

double expert_activation_seconds(const RankCostModel& rank) {
  return ExpertLayer(rank).activation_seconds();
}

std::vector<std::pair<std::string, ProductShape>> expert_products(const RankCostModel& rank) {
  return ExpertLayer(rank).products();
}

}  // namespace mcpp
