// Records of one microbatch passing through a block of a model on the meta device: what the block computes, moves and
// sends. Estimates of time, FLOPs and weights read only these records, so the modules of a block are its only
// description.
#pragma once
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "model/config/block_spec.h"
#include "model/layer_memory.h"
#include "nn/placement.h"
#include "tensor/op_trace.h"

namespace mcpp {

/// This rank's part of a parameter.
struct ParamTrace {
  std::string name;
  Shape shape;
  GridKind grid = GridKind::Dense;
  bool is_matrix = false;           ///< has Param::matrices
  bool has_partial_slices = false;  ///< see Param::has_partial_slices()
};

/// Passes of one microbatch through a block, or through the output, on the first rank; and the block's parameters.
struct BlockTrace {
  OpTrace forward, backward;
  std::vector<ParamTrace> params;
};

/// Returns a short name of a weight, such as "qkv", "fc1" or "experts.fc1" for
/// "decoder.layers.3.mlp.experts.linear_fc1.weight".
std::string short_weight_name(const std::string& param);

/// Returns the mixer of a block without its feed-forward part, and the reverse.
BlockSpec mixer_of(const BlockSpec& block);
BlockSpec feed_forward_of(const BlockSpec& block);

/// Traces of a model's blocks in many setups. A trace is recorded when it is first used. Not thread-safe.
class BlockTraces {
 public:
  /// Keeps a reference to `config`.
  explicit BlockTraces(const ModelConfig& config) : config_(config) {}

  /// Setups that differ only in full recomputation or offloading share a trace. `block` may be only the mixer or only
  /// the feed-forward part of a block.
  const BlockTrace& get(const ActivationSetup& setup, const BlockSpec& block);
  /// Returns the trace of the final norm, the output matrix and the loss.
  const BlockTrace& output(const ActivationSetup& setup);

 private:
  const ModelConfig& config_;
  std::map<std::pair<ActivationSetup, BlockSpec>, BlockTrace> traces_;
  std::map<ActivationSetup, BlockTrace> outputs_;
};

/// Measurements of one model on the meta device. A measurement is made when it is first used. Not thread-safe.
struct ModelMeasurements {
  /// Keeps a reference to `config`.
  explicit ModelMeasurements(const ModelConfig& config) : blocks(config), sizes(config), traces(config) {}

  BlockKinds blocks;
  LayerSizesCache sizes;
  BlockTraces traces;
};

}  // namespace mcpp
