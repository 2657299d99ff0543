#include "plan/cost/expert_time.h"

#include <algorithm>
#include <cmath>

#include "base/integer_math.h"

namespace mcpp {
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
        width_(model_.moe_ffn() / layout_.etp),
        // Rows from all ranks of the exchange, divided evenly among the expert shards.
        rows_per_expert_(
            std::max<i64>(1, std::llround(imbalance_ * real(choices_ * layout_.etp) / real(local_experts_)))) {}

  UnitTime time() const {
    const ProductType type = rank_.job().work.non_fp8_products();
    const i64 hidden = model_.hidden_size;
    UnitTime t = router();
    t += rank_.weight_products(rows_per_expert_, up(width_), hidden, type, local_experts_);
    t += rank_.weight_products(rows_per_expert_, hidden, width_, type, local_experts_);
    t += rank_.activation(rows(), width_);
    t += moves();
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
  i64 up(i64 width) const { return (model_.gated() ? 2 : 1) * width; }
  i64 rows() const { return rows_per_expert_ * local_experts_; }
  bool exchanges() const { return layout_.ep * layout_.etp > 1; }

  /// A thin fp32 product over tokens that are converted to fp32.
  UnitTime router() const {
    const Hardware& hardware = rank_.job().hardware;
    const double numbers = real(tokens_) * real(model_.hidden_size), wide = 4;
    const double flops = 2 * numbers * real(model_.moe.num_experts);
    const double one = rank_.seconds(std::max(flops / hardware.product_flops(ProductType::Fp32),
                                              hardware.traffic_seconds(numbers * (rank_.element_bytes() + 2 * wide))),
                                     2);
    UnitTime t;
    t.forward.products = t.backward_input.products = t.backward_weight.products = one;
    return t;
  }

  /// Rows are packed by expert and unpacked on arrival, in both directions; then summed with their weights.
  UnitTime moves() const {
    const double moved = real(model_.hidden_size) * (2 * real(choices_) + (exchanges() ? 2 * real(rows()) : 0));
    UnitTime t;
    t.forward.elementwise = rank_.seconds(moved * rank_.kernels().copy, kForwardKernels);
    t.backward_input.elementwise = rank_.seconds(moved * rank_.kernels().copy, kBackwardKernels);
    return t;
  }

  /// Dispatch and combine, in both passes.
  UnitTime exchange() const {
    const Collectives& collectives = rank_.collectives();
    const RankGroup group = layout_.exchange_group();
    const double row = real(model_.hidden_size) * rank_.element_bytes();
    UnitTime t;
    if (layout_.dispatcher == TokenDispatcherType::AllGather)
      t.forward.expert_parallel = 2 * collectives.all_gather(real(tokens_ * group.ranks) * row, group);
    else
      t.forward.expert_parallel = 2 * collectives.all_to_all(imbalance_ * real(choices_ * layout_.etp) * row, group) +
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
