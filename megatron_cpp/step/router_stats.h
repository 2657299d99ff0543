// Router statistics of a step over all ranks, and the resulting updates of router state.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "model/gpt_model.h"
#include "tensor/host/async_copy.h"

namespace mcpp {

/// Statistics of an expert layer over the global batch of a step.
struct LayerRoutingStats {
  i64 layer = 0;
  RoutingCounts tally;
};

class RouterStats {
 public:
  /// Allocates the state of the routers. `models` are the chunks of this rank; their routers own rows in a table of all
  /// expert layers of the model.
  RouterStats(const ModelConfig& config, std::span<GPTModel* const> models, Communicator& world, Device& device);

  bool is_empty() const { return layers_.empty(); }
  /// Resets the statistics; call it before the passes of a step.
  void clear();
  /// Sums the statistics over all ranks after the passes. Collective.
  void sum_over_ranks();
  /// Updates the routers from the last sum_over_ranks(), after the step was applied.
  void end_step();
  /// Returns true if steps change router state, in which case the host must wait for their outcome.
  bool has_state() const;
  /// Waits for the last sum_over_ranks() and returns its result.
  std::vector<LayerRoutingStats> layer_stats() const;

 private:
  std::size_t row_of(i64 layer) const;
  std::vector<double> row(std::span<const double> table, std::size_t row) const;

  std::vector<i64> layers_;  // global indices of the expert layers of the full model
  std::vector<GPTModel::LayerRouter> routers_;
  i64 columns_;
  Communicator& world_;
  Tensor table_;  // fp64 [layers, columns]
  std::unique_ptr<AsyncReadback> table_readback_;
};

}  // namespace mcpp
