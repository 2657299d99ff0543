// Parameters of the chunks of a rank, for predictions of its memory. Layers of the same kind have the same parameters,
// so one layer of each kind is built on the meta device instead of a model.
#pragma once
#include <map>
#include <tuple>
#include <vector>

#include "model/block_trace.h"
#include "model/memory.h"

namespace mcpp {

struct ChunkParam {
  ParamTrace param;
  int unit = 0;
};

/// Parameters of a model in many setups. Not thread-safe.
class ChunkParams {
 public:
  /// Keeps a reference to `config`.
  explicit ChunkParams(const ModelConfig& config) : config_(config), blocks_(config) {}

  bool has_experts() const { return config_.moe.num_experts > 0; }
  /// Returns the parameters of each chunk of the rank, in the order of GPTModel::visit().
  std::vector<std::vector<ChunkParam>> get(const ActivationSetup& setup, const RankMemorySpec& share);

 private:
  using SetupKey = std::tuple<i64, bool, i64, i64>;  ///< members of a setup that affect parameters
  static SetupKey key_of(const ActivationSetup& setup) {
    return {setup.tensor_parallel, setup.sequence_parallel, setup.expert_parallel, setup.expert_tensor_parallel};
  }
  const std::vector<ParamTrace>& layer(const ActivationSetup& setup, std::size_t kind);
  /// Returns the parameters of chunks without layers.
  const std::vector<std::vector<ChunkParam>>& rest(const ActivationSetup& setup,
                                                   const std::vector<StageContents>& chunks, int final_norm_rank);

  const ModelConfig& config_;
  BlockKinds blocks_;
  std::map<std::pair<SetupKey, std::size_t>, std::vector<ParamTrace>> layers_;
  std::map<std::tuple<SetupKey, std::vector<StageContents>, int>, std::vector<std::vector<ChunkParam>>> rests_;
};

/// Reuses the parameters of layers for many setups.
RankParameters rank_parameters(ChunkParams& params, const ActivationSetup& setup, const RankMemorySpec& share);

}  // namespace mcpp
