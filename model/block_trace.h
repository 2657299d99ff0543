// Records of the computation, memory traffic and messages of one microbatch in a block on the meta device. Estimates of
// time, FLOPs and weights read only these records, so they cannot disagree with the modules.
#pragma once
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "model/config/block_spec.h"
#include "model/layer_memory.h"
#include "nn/placement.h"
#include "tensor/op_trace.h"

namespace mcpp {

/// Shard of a parameter on this rank.
struct ParamTrace {
  std::string name;
  Shape shape;
  GridKind grid = GridKind::Dense;
  bool is_matrix = false;           ///< has Param::matrices
  bool has_partial_slices = false;  ///< see Param::has_partial_slices()
};

/// Ops of one microbatch in a block or in the output layer on the first rank, and the parameters of the block.
struct BlockTrace {
  OpTrace forward, backward;
  std::vector<ParamTrace> params;
};

/// Returns a short name of a weight, such as "qkv", "fc1" or "experts.fc1" for
/// "decoder.layers.3.mlp.experts.linear_fc1.weight".
std::string short_weight_name(const std::string& param);

/// Returns the block without its feed-forward part.
BlockSpec mixer_of(const BlockSpec& block);
/// Returns the block without its mixer.
BlockSpec feed_forward_of(const BlockSpec& block);

/// Traces of a model's blocks in many setups. A trace is recorded when it is first used. Not thread-safe.
class BlockTraces {
 public:
  /// Keeps a reference to `config`.
  explicit BlockTraces(const ModelConfig& config) : config_(config) {}

  /// Returns the trace of a block, or of the result of mixer_of() or feed_forward_of(), with the recipes of layer
  /// `layer`. Setups that differ only in full recomputation or offloading share a trace.
  const BlockTrace& get(const ActivationSetup& setup, const BlockSpec& block, i64 layer = 0);
  /// Returns the trace of the output part of a stage: the final norm, multi-token prediction, the output matrix and the
  /// loss, or a part of these.
  const BlockTrace& output(const ActivationSetup& setup, const StageContents& stage);

 private:
  const ModelConfig& config_;
  std::map<std::tuple<ActivationSetup, BlockSpec, i64>, BlockTrace> traces_;
  std::map<std::pair<ActivationSetup, StageContents>, BlockTrace> outputs_;
};

/// Returns for each layer a number that is equal for two layers of the same kind only if each linear layer of one has
/// the same recipe as in the other.
std::vector<i64> recipe_variants(const ModelConfig& config, const Fp8Layers& fp8);

/// Measurements of one model on the meta device. A measurement is made when it is first used. Not thread-safe.
struct ModelMeasurements {
  /// Keeps a reference to `config`. Layers with different recipes in `fp8` are of different kinds.
  explicit ModelMeasurements(const ModelConfig& config, const Fp8Layers& fp8 = {})
      : blocks(config, recipe_variants(config, fp8)), sizes(config), traces(config) {}

  BlockKinds blocks;
  LayerSizesCache sizes;
  BlockTraces traces;
};

}  // namespace mcpp
