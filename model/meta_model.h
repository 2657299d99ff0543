// Models on the meta device, which need neither memory nor other ranks. They provide names, boxes, units and placements
// of parameters, and run passes without computing. Code that lists parameters or estimates activations uses them, so
// that sizes are defined only in the layers.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "model/gpt_model.h"
#include "model/memory.h"

namespace mcpp {

/// Meta device, and process groups of rank 0 in every parallel dimension. Must outlive the models built with it.
class MetaModelContext {
 public:
  explicit MetaModelContext(const ActivationSetup& setup = {});
  MetaModelContext(const MetaModelContext&) = delete;
  MetaModelContext& operator=(const MetaModelContext&) = delete;

  /// Throws OutOfMemory if the model is too large to count (check_countable()).
  ModelContext context(const ModelConfig& config);
  MetaDevice& device() { return device_; }

 private:
  ActivationSetup setup_;
  MetaDevice device_;
  std::unique_ptr<Communicator> tp_, heads_, ring_, exchange_, node_exchange_, sample_;
  std::shared_ptr<const ExchangeNodes> nodes_;  // null unless dispatch is hierarchical
};

/// One microbatch passing through a module on the meta device.
class MetaRun {
 public:
  /// Keeps a reference to `setup`.
  MetaRun(const ModelConfig& config, const ActivationSetup& setup);

  const ModelContext& context() const { return context_; }
  MetaDevice& device() { return meta_.device(); }
  /// Allocates the value and the main gradient of a parameter.
  void allocate(Param& param);
  /// Returns hidden states of the shape on this rank, or `count` of them along the first axis.
  Tensor make_input(i64 count = 1);
  /// Returns targets for the tokens on this rank, int32 [s, b].
  Tensor make_targets();
  /// Returns a microbatch whose passes record where they yield, with overlap_moe_expert_parallel_comm.
  MicrobatchContext make_microbatch();

 private:
  const ActivationSetup& setup_;
  MetaModelContext meta_;
  ModelContext context_;
  Shape input_shape_;
  std::shared_ptr<const SamplePartition> partition_;
};

/// One microbatch passing through the output part of a stage: the final norm, multi-token prediction and the output, or
/// a part of these.
class MetaOutput {
 public:
  /// Keeps a reference to `setup`.
  MetaOutput(const ModelConfig& config, const ActivationSetup& setup, const StageContents& stage);

  MetaRun& run() { return run_; }
  void visit(const ParamVisitor& f);
  void forward(MicrobatchContext& microbatch);
  void backward(MicrobatchContext& microbatch);

 private:
  /// Returns the number of states in a message between the stages of multi-token prediction and of the output in
  /// training.
  i64 num_predictions() const { return static_cast<i64>(1 + future_.size()); }

  MetaRun run_;
  GPTModel output_;
  std::vector<FutureTokens> future_;
};

/// Throws OutOfMemory if the bytes of the model's weights, or of its activations for `tokens` tokens, do not fit in 64
/// bits.
void check_countable(const ModelConfig& config, i64 tokens = 0);

/// Calls f on every parameter of the full model, as held by a single rank or by the first rank of a setup without
/// pipeline, in the order of GPTModel::visit(). Builds only one layer at a time.
void visit_meta_params(const ModelConfig& config, const std::function<void(const Param&)>& f,
                       const ActivationSetup& setup = {});

// Model chunks of one rank of a training run, on the meta device.

/// Calls f on each chunk of the rank given by `share`, without allocating its parameters.
void visit_rank_meta_model(const ModelConfig& config, const ActivationSetup& setup, const RankMemorySpec& share,
                           const std::function<void(GPTModel& chunk)>& f);

}  // namespace mcpp
