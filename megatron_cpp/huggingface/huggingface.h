// Import and export of Hugging Face models: folders with config.json and safetensors. Values are copied without
// arithmetic, so that a round trip is bitwise identical.
#pragma once
#include <memory>
#include <optional>

#include "checkpoint/format/safetensors.h"
#include "checkpoint/format/shard.h"
#include "checkpoint/load/reader.h"
#include "megatron_cpp/huggingface/huggingface_config.h"
#include "model/config/config.h"

namespace mcpp {

struct ImportedModel {
  ModelConfig model;
  /// Parameters of the imported model ("model/..."), loaded one at a time. Rows of the padded vocabulary are zero.
  std::unique_ptr<ShardSource> weights;
  /// Prefixes such as "model.layers.61." of tensors that were not imported: the layers for multi-token prediction that
  /// DeepSeek-V3's checkpoints hold after the layers of config.json, and that transformers ignores, too.
  std::vector<std::string> skipped_layers = {};
  bool ignores_index = false;  ///< model.safetensors was read even though model.safetensors.index.json exists
};

/// Opens a model of a HuggingfaceFamily. `dtype` is the type to convert the weights to; by default bf16 or fp16 if all
/// tensors have that type, else fp32. `device` must outlive the result. Throws BadInput for tensors that are missing,
/// have a shape other than config.json implies, or have no counterpart in the model. Reading the weights throws it for
/// tensors with NaN or infinite values.
ImportedModel import_huggingface(const Path& folder, std::optional<DType> dtype, Device& device);

struct HuggingfaceExport {
  std::optional<DType> dtype = {};  ///< type of the weights; by default as in the checkpoint
  std::string model_type = {};      ///< Hugging Face model type; empty = the first type that can express the model
  Path tokenizer_model = {};  ///< sentencepiece model to export, which determines the special tokens; empty = none
  /// Stated special tokens of the checkpoint to write back. If there are none, the tokenizer's are written.
  SpecialTokens tokens = {};
  i64 max_file_bytes = kMaxSafetensorsBytes;
};

/// Writes the weights of a checkpoint as a folder that transformers' from_pretrained reads. `model` must be the model
/// of the checkpoint. Throws BadInput if no Hugging Face model type, or not the requested one, can express it, if the
/// folder already holds a model, and for tensors with NaN or infinite values.
void export_huggingface(const Path& folder, const ModelConfig& model, CheckpointReader& checkpoint,
                        const HuggingfaceExport& options = {});

// Conversion of a dense model to a mixture of experts that are initialized with its MLPs (Komatsuzaki et al., "Sparse
// Upcycling", 2023).

/// Returns the weights of `upcycled`, which must be the model of the checkpoint except for its experts. Every expert is
/// the MLP of its layer; routers are initialized randomly from name and seed. If the expert weights of a token add up
/// to 1, the model's outputs are unchanged. Holds one tensor in memory at a time. Throws BadInput if an MLP cannot
/// become an expert because the width differs or there is a shared expert. `device` and `dense` must outlive the
/// result.
std::unique_ptr<ShardSource> upcycle(CheckpointReader& dense, const ModelConfig& upcycled, u64 seed, Device& device);

}  // namespace mcpp
