// Workload of a run, and the input of predictions.
#pragma once
#include <memory>
#include <vector>

#include "model/block_trace.h"
#include "parallel/layout.h"
#include "plan/cost/collectives.h"
#include "plan/hardware/hardware.h"

namespace mcpp {

/// Training workload, identical for all layouts.
struct Workload {
  ModelConfig model;
  DType dtype = DType::BF16;
  Fp8Layers fp8 = {};  ///< linear layers in low precision
  i64 global_batch_size = 1;
  StatesPerWeight states = {};
  i64 segment_elements = i64{4} << 20;  ///< offload_segment_size
  /// Members that are identical in every layout of a search: formats, bucket size and overlap. The search sets the
  /// other members.
  Layout base = {};
  bool can_round_gradients = true;  ///< the optimizer accepts gradients in bf16
  bool records_logits = false;      ///< every step records the largest attention logits, for QK-clip
  bool records_passes = false;      ///< passes are recorded in CUDA graphs, which only some layouts support
  i64 ema_interval = 0;             ///< updates between two updates of averaged weights; 0: none are kept
  /// Expert load imbalance: ratio of the tokens routed to the experts of the busiest rank to an even share.
  double expert_imbalance = 1.1;
  /// Mean length, in tokens, of the documents to which attention is restricted; 0: each sample is one document.
  double document_tokens = 0;

  double tokens() const { return static_cast<double>(global_batch_size * model.seq_length); }
  /// Returns the precision of GEMMs without a recipe.
  GemmType gemms() const { return dtype == DType::F32 ? GemmType::Fp32 : GemmType::Bf16; }
  /// Returns the recipes that round operands in any pass of a linear layer, in the order of GemmRecipe.
  std::vector<GemmRecipe> recipes() const;
  /// Returns the setup of the activations of a layout. Low precision is included only if experts receive rows in fp8,
  /// since it hardly changes what is saved for backward otherwise.
  ActivationSetup activations(const Layout& layout) const;
};

/// Input of the step time prediction.
struct PredictionInput {
  const Hardware& hardware;
  const KernelTraits& program;
  const Workload& work;
  Layout layout;
  /// Measurements of work.model. Predictions that share this object measure each block only once.
  std::shared_ptr<ModelMeasurements> measurements = std::make_shared<ModelMeasurements>(work.model, work.fp8);

  ActivationSetup activations() const { return work.activations(layout); }
  /// Returns true if gradients are reduced and weights gathered concurrently with compute. Graphs do not contain
  /// collectives, which run after them.
  bool overlaps_data_parallel() const { return program.overlaps_data_parallel && !work.records_passes; }
  /// Returns the setup of traces, which describe the rank with the busiest experts.
  ActivationSetup trace_setup() const;
  /// Return the traces of a block, or of a part of one, with the recipes of layer `layer`, and of what follows the
  /// layers of a stage.
  const BlockTrace& trace(const BlockSpec& block, i64 layer = 0) const {
    return measurements->traces.get(trace_setup(), block, layer);
  }
  const BlockTrace& output_trace(const StageContents& stage = {}) const {
    return measurements->traces.output(trace_setup(), stage);
  }
};

}  // namespace mcpp
