// What every module of one model is built with.
#pragma once
#include <compare>
#include <optional>
#include <vector>

#include "comm/communicator.h"
#include "model/config/config.h"
#include "nn/param.h"
#include "nn/pass.h"
#include "parallel/cp/context_parallel.h"
#include "parallel/ep/expert_parallel.h"
#include "parallel/tp/fp8_scaling.h"
#include "tensor/ops/ops.h"
#include "tensor/profiler.h"

namespace mcpp {

/// Which outputs are computed again in backward instead of kept (Korthikanti et al., "Reducing Activation Recomputation
/// in Large Transformer Models", 2022). The results are the same bits.
struct Recompute {
  enum class Granularity : u8 { None, Full, Selective } granularity = Granularity::None;
  /// Full: layers are recomputed in groups of `num_layers` (uniform), or only the first `num_layers` one by one
  /// (block).
  enum class Method : u8 { Uniform, Block } method = Method::Uniform;
  i64 num_layers = 1;
  /// Full, without sequence parallelism: the inputs that are kept are cut over the tensor-parallel ranks.
  bool distributes_saved = false;
  /// Selective: what is recomputed inside each layer.
  bool core_attn = false, layernorm = false, mlp_act = false, moe_act = false;

  auto operator<=>(const Recompute&) const = default;
};

/// Layers of a stage that follow one another and are recomputed together, or one that is kept.
struct LayerGroup {
  i64 layers = 1;
  bool is_recomputed = false;
};
/// All `layers` of one stage, in order: recomputation by groups or by count begins anew in each.
std::vector<LayerGroup> layer_groups(const Recompute& recompute, i64 layers);

/// Which of a model's layers have their linear layers in fp8, and how. Routers, experts of a mixture, embeddings and
/// the output layer stay in the model's type.
struct Fp8Layers {
  Fp8Format gradients = Fp8Format::E4M3;  ///< inputs and weights are in E4M3
  i64 first = 0, end = 0;                 ///< of the whole model's layers; none when they are the same

  bool has(i64 layer) const { return first <= layer && layer < end; }
  auto operator<=>(const Fp8Layers&) const = default;
};

struct ModelContext {
  ModelConfig config;
  DType dtype = DType::F32;  ///< of weights and activations
  u64 seed = 1234;           ///< of dropout
  Recompute recompute;
  Device& device;
  Communicator& tp;
  /// Between the parallel regions of a layer each tensor-parallel rank holds its part of the sequence, [s / tp, b, h]
  /// (Korthikanti et al. 2022): norms and dropout are not computed twice, and activations take less memory.
  bool sequence_parallel = false;
  /// Of what each rank has of a sample, [s / cp, b, h], sequence parallelism takes a part once more.
  ContextParallel cp = {};
  /// Who exchanges tokens of the layers with experts.
  ExpertParallel experts = {};
  Fp8Layers fp8 = {};
  /// The GELU of an MLP is a part of the products around it (tensor/ops/fused/gelu_epilogue.h).
  bool gelu_epilogue = false;
  /// Where what layers keep for backward is meanwhile; null: in the device's memory.
  ActivationStore* activations = nullptr;
  Profiler* profiler = nullptr;  ///< of this rank; null: nobody is told what takes how long

  /// Standard deviation of the layers that write to the residual stream: smaller, as there are 2 per layer (GPT-2).
  double output_init_std() const;
  /// The position in the pipeline of the rank with the output layer; the embedding is on the first. Where they are
  /// tied, the two ranks hold one parameter.
  int output_rank = 0;

  /// Positions of each sample that this rank's passes have, of model.seq_length.
  i64 local_seq_length() const { return config.seq_length / cp.size(); }
  /// Whether there are several parts of the sequence at all.
  bool splits_sequence() const { return sequence_parallel && tp.size() > 1; }
  /// How activations lie between the parallel regions, and between pipeline stages.
  ActivationPlacement stream() const {
    return splits_sequence() ? ActivationPlacement::Sequence : ActivationPlacement::Whole;
  }
  /// Along pp: the ranks that hold the word embeddings, each of which has a part of their gradient.
  AlongAxis holders_of_word_embeddings() const;
  /// Of the rows of x [s or s / tp, b, h], outside the parallel regions: for learned positions and dropout.
  Positions positions(const Tensor& x, const Pass& pass) const;
  /// The dropout of a site such as "decoder.layers.3.mlp" for rows of a pass that stand at `positions`.
  Dropout dropout_for(double p, const std::string& site, const PositionRanges& positions, const Pass& pass) const;
  /// How linear layers of a layer of the whole model multiply; nothing: in the model's type.
  std::optional<Fp8Recipe> fp8_of(i64 layer) const;
  /// Places a parameter that every tensor-parallel rank holds whole and uses between the parallel regions.
  void place_in_stream(Param& param) const;
};

}  // namespace mcpp
