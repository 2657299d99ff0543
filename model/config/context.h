// Arguments that the constructors of all modules of a model share.
#pragma once
#include <compare>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "model/config/config.h"
#include "nn/microbatch_context.h"
#include "nn/param.h"
#include "parallel/cp/context_parallel.h"
#include "parallel/ep/expert_parallel.h"
#include "parallel/tp/fp8_scaling.h"
#include "tensor/ops/ops.h"
#include "tensor/profiler.h"

namespace mcpp {

/// Consecutive layers of a stage that are recomputed together, or one layer that is not recomputed.
struct LayerGroup {
  i64 layers = 1;
  bool is_recomputed = false;
};
/// Returns the groups of the `layers` layers of one stage, in order. Each stage is grouped separately.
std::vector<LayerGroup> layer_groups(const Recompute& recompute, i64 layers);

/// Recipe of the linear layers with these names, such as "decoder.layers.3.mlp.linear_fc1" (base/glob.h).
struct ModuleRecipe {
  std::vector<std::string> patterns;
  PassRecipes recipe;

  bool matches(std::string_view module) const;
  auto operator<=>(const ModuleRecipe&) const = default;
};

/// Linear layers that compute in low precision. A linear layer takes the first of `modules` that matches its name.
/// Without a match, linear layers in a range of layers use fp8, except routed experts. All other linear layers use the
/// model's dtype, as routers and embeddings do.
struct Fp8Layers {
  PassRecipes recipe = {};
  i64 first = 0, end = 0;  ///< global layer indices [first, end); empty if equal
  std::vector<ModuleRecipe> modules = {};
  DelayedScaling delayed = {};  ///< settings of the recipe `delayed`
  /// Routed experts receive the rows that their recipes round in blocks, tokens and gradients of outputs, as codes.
  bool moe_fp8_dispatch = false;

  /// Returns true if any linear layer may use the recipe in any pass.
  bool uses(GemmRecipe recipe) const;
  bool has(i64 layer) const { return first <= layer && layer < end; }
  bool is_empty() const { return first == end && modules.empty(); }
  /// Returns a number that is equal for two layers of the same kind only if their linear layers have the same recipes.
  i64 variant(i64 layer) const { return modules.empty() ? (has(layer) ? 1 : 0) : layer; }
  /// Return the recipe of a linear layer of a layer, or of routed experts or the output layer, which only a match puts
  /// into low precision; null: it uses the model's dtype.
  const PassRecipes* find(std::string_view module, i64 layer) const;
  const PassRecipes* find(std::string_view module) const;
  auto operator<=>(const Fp8Layers&) const = default;
};

struct ModelContext {
  ModelConfig config;
  DType dtype = DType::F32;  ///< dtype of weights and activations
  u64 seed = 1234;           ///< seed of dropout
  Recompute recompute;
  Device& device;
  Communicator& tp;
  /// Shards the sequence across tensor-parallel ranks, [s / tp, b, h], between the parallel regions of a layer
  /// (Korthikanti et al. 2022). Avoids duplicate norms and dropout, and reduces activation memory.
  bool sequence_parallel = false;
  /// Overlaps the communication of linear layers across tensor-parallel ranks with their GEMMs.
  bool tp_comm_overlap = false;
  /// Context parallelism: each rank has [s / cp, b, h] of a sample, which sequence parallelism shards further.
  ContextParallel cp = {};
  /// Ranks that exchange the tokens of layers with experts.
  ExpertParallel experts = {};
  Fp8Layers fp8 = {};
  /// Histories of the linear layers with the recipe `delayed`; null: they use the scales of `tensorwise`.
  AmaxHistories* amax_histories = nullptr;
  /// Fuses the GELU of an MLP into its GEMMs (tensor/ops/fused/gelu_epilogue.h).
  bool gelu_epilogue = false;
  /// Steps after which passes of microbatches are recorded in graphs (tensor/device_graph.h); 0: passes are never
  /// recorded.
  i64 graph_warmup_steps = 0;
  /// Store for offloaded activations; nullptr: activations are not offloaded.
  ActivationStore* activations = nullptr;
  Profiler* profiler = nullptr;  ///< profiler of this rank; may be null

  /// Returns the initial standard deviation of projections of a layer that add to the residual stream: init_method_std
  /// divided by the square root of their number in the model (GPT-2), or as depth_init selects. There are two per layer
  /// unless hybrid_layer_pattern is set. Layers of multi-token prediction count as the last layer.
  double output_init_std(i64 layer) const;
  /// Pipeline rank with the final norm and multi-token prediction; with tied embeddings, also with the output layer. If
  /// it uses the word embeddings, they are one parameter on the first rank and this one.
  int final_norm_rank = 0;

  /// Returns the number of positions of each sample that this rank processes, out of model.seq_length.
  i64 local_seq_length() const { return config.seq_length / cp.size(); }
  /// Returns true if the sequence is sharded across more than one rank.
  bool splits_sequence() const { return sequence_parallel && tp.size() > 1; }
  /// Returns the placement of activations between the parallel regions and between pipeline stages.
  ActivationPlacement stream() const {
    return splits_sequence() ? ActivationPlacement::SequenceSharded : ActivationPlacement::Replicated;
  }
  /// Returns the pipeline ranks that hold the word embeddings, between which their gradient must be summed.
  AxisPlacement word_embedding_ranks() const;
  /// Returns the positions of the rows of x [s or s / tp, b, h] outside the parallel regions, for learned positions and
  /// dropout.
  Positions positions(const Tensor& x, const MicrobatchContext& microbatch) const;
  /// Returns the dropout of a site such as "decoder.layers.3.mlp" for rows at `positions`.
  Dropout dropout_for(double p, const std::string& site, const PositionRanges& positions,
                      const MicrobatchContext& microbatch) const;
  /// Return Fp8Layers::find() with the ranks that hold shards of a microbatch and the history of the layer.
  std::optional<Fp8Recipe> fp8_recipe(std::string_view module, i64 layer) const;
  std::optional<Fp8Recipe> fp8_recipe(std::string_view module) const;
  /// Sets the placement of a parameter that is replicated on tensor-parallel ranks and used between the parallel
  /// regions.
  void place_in_stream(Param& param) const;
};

}  // namespace mcpp
