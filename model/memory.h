// How much memory training takes on one rank: parameters as a model on paper declares them (model/on_paper.h), and
// arithmetic. docs/memory.md derives the formulas and sets them beside what was measured.
#pragma once
#include <compare>
#include <vector>

#include "base/io/offload_tier.h"
#include "model/config/context.h"
#include "parallel/dp/buckets/grad_wire.h"
#include "parallel/pp/schedule.h"
#include "parallel/pp/stages.h"

namespace mcpp {

/// Of the tokens that ranks exchange, how many come to the experts of one: an even share, or all that can.
enum class ExpertLoad { Even, Most };

/// What the size of activations depends on beside the model.
struct ActivationSetup {
  DType dtype = DType::F32;
  Recompute recompute = {};
  i64 micro_batch_size = 1;
  i64 tensor_parallel = 1;
  bool sequence_parallel = false;
  SequenceCut cut = {};  ///< over context-parallel ranks
  CpCommType cp_comm_type = CpCommType::P2p;
  i64 expert_parallel = 1, expert_tensor_parallel = 1;
  TokenDispatcherType dispatcher = TokenDispatcherType::AllToAll;
  ExpertLoad expert_load = ExpertLoad::Even;
  OffloadTier offload = OffloadTier::Device;  ///< where what layers keep waits for backward
  Fp8Layers fp8 = {};

  /// Of one microbatch on one rank.
  i64 tokens(const ModelConfig& config) const { return config.seq_length / cut.ranks() * micro_batch_size; }
  auto operator<=>(const ActivationSetup&) const = default;
};

/// Bytes that layer 0, 1, ... keeps from its forward to its backward pass, its own input included and its output not.
/// Exact on every tensor-parallel rank, where as many tokens come to its experts as `setup` says. With full
/// recomputation, those of a layer that is not recomputed.
i64 layer_activation_bytes(const ModelConfig& config, const ActivationSetup& setup, i64 layer = 0);

struct StageActivations {
  i64 kept = 0;          ///< bytes from forward to backward of one microbatch; exact
  i64 working = 0;       ///< the most that backward holds beside what is kept
  i64 away = 0;          ///< bytes that wait elsewhere
  i64 blocks = 0;        ///< of a disk, that they take there
  i64 largest_unit = 0;  ///< bytes of the most that come and go together
  // Where weight gradients are put off:
  i64 waiting = 0;  ///< what they wait with, instead of what was kept or away, once the input's gradient is there
  i64 working_put_off = 0;  ///< `working`, of what comes to that
};
StageActivations stage_activations(const ModelConfig& config, const ActivationSetup& setup, const StageContents& stage);

/// The part of a training that one rank has.
struct RankShare {
  std::vector<StageContents> stages;  ///< of the whole pipeline
  Schedule schedule;                  ///< of one step; lowered or not
  int pipeline_rank = 0;
  int zero_stage = 0;
  i64 shards = 1;                    ///< ranks that share what the ZeRO stage cuts
  i64 expert_shards = 1;             ///< the same of the experts' parameters
  i64 bucket_elements = 40'000'000;  ///< ddp_bucket_size
  bool overlap_grad_reduce = true, overlap_param_gather = true;
  /// Ranks that share the copy of weights and optimizer state which a save beside the training writes; 0: there is
  /// none.
  i64 savers = 0;
  double states_elsewhere = 0;  ///< share of the optimizer's states that is kept in host memory or on a disk
  bool elsewhere_is_disk = false;
  i64 segment_elements = i64{4} << 20;  ///< offload_segment_size
  bool bf16_grads = false;              ///< DataParallelOptions, as the next three are
  bool quantized_weights = false;
  GradWire grad_wire = GradWire::Full;
  i64 power_sgd_rank = 0;
  i64 node_ranks = 1;                        ///< see zero_hpz_partition_size; 1: there are none
  OffloadTier params = OffloadTier::Device;  ///< ParamOffload::tier

  /// Whether numbers travel in messages beside them: closing_elements().
  bool packs() const { return quantized_weights || grad_wire != GradWire::Full; }

  /// Of the rank's chunk 0, 1 ...
  const StageContents& contents(int chunk) const {
    return stages[static_cast<std::size_t>(schedule.stage_of(pipeline_rank, chunk))];
  }
};
/// The most that activations of all microbatches in flight take.
struct PeakActivations {
  i64 here = 0, away = 0;  ///< bytes
  i64 blocks = 0;          ///< of a disk
};

/// All of the model on one rank, one microbatch in a step.
RankShare whole_share(const ModelConfig& config);

/// Peak bytes of each class of memory on one rank, as the device's pool rounds them up. What kernels use for themselves
/// (Workspace) is not included.
struct MemoryEstimate {
  double params = 0, grads = 0, optimizer_state = 0;
  double activations = 0;       ///< of the microbatches in flight, with the working set of the pass that needs most
  double save_copy = 0;         ///< of what an asynchronous save writes
  double elsewhere = 0;         ///< of optimizer_state, what is in host memory or on a disk instead; not in total()
  double params_elsewhere = 0;  ///< the same of params
  double activations_elsewhere = 0;  ///< and of activations
  i64 activations_on_disk = 0;       ///< what these take of a disk
  /// By how much the classes' peaks together are above the peak of their sum, as they come at different moments: where
  /// ZeRO cuts gradients or weights, few units of which are whole at a time.
  double apart = 0;

  double total() const { return params + grads + optimizer_state + activations + save_copy - apart; }
};

/// What the optimizer keeps of each weight beside the master weight, in numbers of fp32: 2 for AdamW, 1 for SGD.
struct StatesPerWeight {
  double of_matrices = 2;  ///< of linear layers (Param::matrices)
  double of_others = 2;
  bool param_remainders = false;  ///< OptimizerConfig::store_param_remainders
  bool encoded_moments = false;   ///< some of these numbers are kept in another form

  /// The master weight of a model of type `dtype`, in the same numbers.
  double master(DType dtype) const { return !is_narrow(dtype) ? 0 : param_remainders ? 17.0 / 32 : 1; }
};

/// What a rank holds of one of its chunks that is placed on one grid, in elements.
struct ChunkParameters {
  std::vector<i64> buckets;              ///< of the flat vectors, padding included; ZeRO 2 and 3 have one for each unit
  std::vector<int> units;                ///< the first unit of each
  std::vector<i64> matrices_of_buckets;  ///< of the elements of each, those of linear layers
  i64 all = 0;                           ///< without padding
  i64 matrices = 0;                      ///< of these, those of linear layers
  i64 first = 0;                         ///< of the first unit
  i64 largest = 0;                       ///< of the largest parameter
  i64 low_rank = 0;                      ///< elements that PowerSGD remembers: of errors and factors

  i64 total() const;  ///< of the buckets
};
/// Of all chunks of the rank, as its modules are built on paper. Of `setup` and `share` counts what cuts parameters and
/// lays them out: ranks and stages, ZeRO stage, shards and buckets.
struct RankParameters {
  std::vector<ChunkParameters> dense, experts;  ///< by chunk
};
RankParameters rank_parameters(const ModelConfig& config, const ActivationSetup& setup, const RankShare& share);

MemoryEstimate estimate_memory(const ModelConfig& config, const ActivationSetup& setup, const StatesPerWeight& states,
                               const RankShare& share);
class LayerSizes;  // model/layer_memory.h, of a configuration and a setup
/// The same, for many estimates with the same rank_parameters() and peak_activations() (model/peak_activations.h).
MemoryEstimate estimate_memory(LayerSizes& sizes, const StatesPerWeight& states, const RankShare& share,
                               const RankParameters& parameters, const PeakActivations& peak);

}  // namespace mcpp
