// Export of checkpoints as distributed checkpoints of PyTorch, with the state of AdamW.
#pragma once
#include "checkpoint/load/reader.h"
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/exchange/weight_formats.h"
#include "megatron_cpp/resume/weight_source.h"

namespace mcpp {

struct ExportRequest {
  /// Torchtitan or Huggingface. Megatron Core reads checkpoints only together with the files of Megatron-LM.
  WeightFormat format = WeightFormat::Torchtitan;
  WeightSource weights = WeightSource::Model;  ///< Ema requires weights_only
  bool weights_only = false;
};

/// Writes a checkpoint of a run with this configuration to a folder that torch.distributed.checkpoint loads: the
/// weights by name and, if the checkpoint has them, the states of AdamW as torchtitan stores them,
/// "optimizer.state.<name>.exp_avg" and "optimizer.param_groups.<name>.lr", and "train_state.step". Weights with fp32
/// master weights become fp32. Learning rate and weight decay are the values for the next step. Throws BadInput if the
/// format has no name for a weight, if its model computes something else (for Torchtitan, the model must be a Llama),
/// if the optimizer is not AdamW, if the checkpoint lacks the weights of the request, if the folder has a distributed
/// checkpoint, or if a tensor has NaN or infinite values.
void export_distributed(const Path& folder, const Config& config, CheckpointReader& checkpoint,
                        const ExportRequest& request);

}  // namespace mcpp
