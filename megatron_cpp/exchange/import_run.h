// Import of training runs of other programs: weights, the state of AdamW and progress, so that a run continues here.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/format/shard.h"
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/exchange/weight_formats.h"
#include "megatron_cpp/resume/checkpointing.h"

namespace mcpp {

struct ImportRequest {
  /// Folder with a distributed checkpoint of PyTorch or Megatron Core, with a legacy checkpoint of Megatron Core or
  /// with pytorch_model.bin; or a file of torch.save.
  Path path;
  /// Configuration of the run that continues (TOML), or config.json of a Hugging Face model. If empty: config.json of
  /// the folder, or the arguments that Megatron-LM stored.
  Path config = {};
  Path save = {};                   ///< folder of the run that continues
  std::optional<DType> dtype = {};  ///< type of the weights; std::nullopt = as in the configuration or in the files
  bool weights_only = false;
  std::optional<i64> iteration = {};         ///< std::nullopt = as in the files
  std::optional<i64> consumed_samples = {};  ///< std::nullopt = as in the files, or iteration * global batch size
};

struct ImportedRun {
  Config config;
  WeightFormat format = WeightFormat::Huggingface;
  /// Weights and, if has_optimizer, the states of AdamW, loaded one at a time.
  std::unique_ptr<ShardSource> shards;
  bool has_optimizer = false;
  TrainingProgress progress = {};
  i64 optimizer_steps = 0;
  i64 padding_rows = 0;                  ///< rows of the vocabulary beyond model.vocab_size, which were not imported
  std::vector<std::string> unused = {};  ///< tensors that were not imported, except those of the optimizer
};

/// Opens the files. `device` must outlive the result. Throws BadInput for tensors that are missing or have a different
/// shape than the configuration implies, for weights without a counterpart in the model, and for the state of an
/// optimizer that is incomplete or not from AdamW. Reading a shard throws BadInput if it has NaN or infinite values.
ImportedRun import_run(const ImportRequest& request, Device& device);

}  // namespace mcpp
