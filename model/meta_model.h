// Models on the meta device: names, global boxes, units and placements of parameters, without allocating memory and
// without other ranks. Code that counts or lists parameters uses it, so that only the layers define them.
#pragma once
#include <functional>
#include <memory>

#include "model/gpt_model.h"
#include "model/memory.h"

namespace mcpp {

/// Provides the meta device and the tensor-parallel group for a model that is inspected and never run, on the first of
/// `tensor_parallel` ranks. Allocation and communication throw an Internal error. Must outlive the models built with
/// it.
class MetaModelContext {
 public:
  explicit MetaModelContext(i64 tensor_parallel = 1);
  ~MetaModelContext();
  MetaModelContext(const MetaModelContext&) = delete;
  MetaModelContext& operator=(const MetaModelContext&) = delete;

  /// Throws OutOfMemory if the model is too large to count (check_countable()).
  ModelContext context(const ModelConfig& config);

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Communicator> tp_;
};

/// Throws OutOfMemory if the model's weights, or its activations for `tokens` tokens, take more bytes than fit in 64
/// bits.
void check_countable(const ModelConfig& config, i64 tokens = 0);

/// Calls f on every parameter of the full model as one rank would hold it, in the order of GPTModel::visit(). Holds
/// the description of one layer at a time.
void visit_meta_params(const ModelConfig& config, const std::function<void(const Param&)>& f);

// Model chunks of one rank of a training run, on the meta device.

/// Calls f on each chunk of the rank given by `share`, without allocating its parameters.
void visit_rank_meta_model(const ModelConfig& config, const ActivationSetup& setup, const RankMemorySpec& share,
                           const std::function<void(GPTModel& chunk)>& f);

}  // namespace mcpp
