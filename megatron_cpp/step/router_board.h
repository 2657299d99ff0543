// The routers of a training: what all ranks saw of them in a step, and what follows for the next.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "model/gpt_model.h"
#include "tensor/host/late_copy.h"

namespace mcpp {

/// Of a layer with experts, over the global batch of a step.
struct LayerTally {
  i64 layer = 0;
  RouterTally tally;
};

class RouterBoard {
 public:
  /// Makes the state of the routers. `models`: the chunks of this rank, whose routers have places in a table of all
  /// layers with experts; both outlive this.
  RouterBoard(const ModelConfig& config, std::span<GPTModel* const> models, Communicator& world, Device& device);

  bool is_empty() const { return layers_.empty(); }
  /// Before the passes of a step.
  void clear();
  /// After them, by all ranks: the sums over ranks.
  void sum();
  /// After the step was taken: what sum() found decides about the next.
  void end_step();
  /// Whether a step changes state of routers, so that somebody must wait for it.
  bool has_state() const;
  /// Of the last sum(), which is waited for.
  std::vector<LayerTally> tallies() const;

 private:
  std::size_t row_of(i64 layer) const;
  std::vector<double> row(std::span<const double> table, std::size_t row) const;

  std::vector<i64> layers_;  // of the whole model
  std::vector<GPTModel::LayerRouter> routers_;
  i64 columns_;
  Communicator& world_;
  Tensor table_;  // fp64 [layers, columns]
  std::unique_ptr<LateCopy> late_table_;
};

}  // namespace mcpp
