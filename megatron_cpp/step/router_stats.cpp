#include "megatron_cpp/step/router_stats.h"

#include <algorithm>

#include "model/config/block_spec.h"
#include "tensor/ops/ops.h"
#include "tensor/transfer.h"

namespace mcpp {

RouterStats::RouterStats(const ModelConfig& config, std::span<GPTModel* const> models, Communicator& world,
                         Device& device)
    : layers_(layers_with_experts(config, 0, config.num_blocks())),
      columns_(RoutingCounts::count(config.moe.num_experts)),
      world_(world) {
  if (is_empty()) return;
  for (GPTModel* model : models) routers_.insert(routers_.end(), model->routers().begin(), model->routers().end());
  for (const auto& [layer, router] : routers_) router->allocate_state();
  const auto rows = static_cast<i64>(layers_.size());
  table_ = Tensor::zeros({rows, columns_}, DType::F64, device, MemoryClass::Other);
  table_readback_ = make_async_readback(device, rows * columns_);
}

std::size_t RouterStats::row_of(i64 layer) const {
  return static_cast<std::size_t>(std::ranges::find(layers_, layer) - layers_.begin());
}

std::vector<double> RouterStats::row(std::span<const double> table, std::size_t row) const {
  const auto columns = static_cast<std::size_t>(columns_);
  const std::span<const double> values = table.subspan(row * columns, columns);
  return {values.begin(), values.end()};
}

void RouterStats::clear() {
  for (const auto& [layer, router] : routers_) router->clear_counts();
}

void RouterStats::sum_over_ranks() {
  if (is_empty()) return;
  ops::fill_zero(table_);
  for (const auto& [layer, router] : routers_) {
    Tensor row = table_.flat(static_cast<i64>(row_of(layer)) * columns_, columns_);
    ops::copy(router->tally(), row);
  }
  world_.all_reduce(table_, ReduceOp::Sum).wait();
  table_readback_->start(table_);
}

bool RouterStats::has_state() const {
  return std::ranges::any_of(routers_,
                             [](const auto& r) { return r.router->expert_bias() || r.router->global_tokens(); });
}

void RouterStats::end_step() {
  const std::vector<double> table = read_values<double>(table_);
  for (const auto& [layer, router] : routers_)
    router->end_step(RoutingCounts::from_values(row(table, row_of(layer))).tokens);
}

std::vector<LayerRoutingStats> RouterStats::layer_stats() const {
  if (is_empty()) return {};
  const std::vector<double> table = table_readback_->values();
  std::vector<LayerRoutingStats> layer_stats;
  for (std::size_t i = 0; i < layers_.size(); ++i)
    layer_stats.push_back({layers_[i], RoutingCounts::from_values(row(table, i))});
  return layer_stats;
}

}  // namespace mcpp
