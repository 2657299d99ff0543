// Models to and from the Hugging Face ecosystem: a folder with config.json and safetensors. Weights are moved, never
// computed with: a round trip gives the same bits.
#pragma once
#include <memory>
#include <optional>

#include "checkpoint/format/safetensors.h"
#include "checkpoint/load/reader.h"
#include "megatron_cpp/huggingface/huggingface_config.h"

namespace mcpp {

struct ImportedModel {
  ModelConfig model;
  /// Our parameters ("model/..."), one in memory at a time. Rows of the padded vocabulary are zero.
  std::unique_ptr<ShardSource> weights;
  bool ignores_index = false;  ///< model.safetensors was read although model.safetensors.index.json exists, too
};

/// Opens a model of a HuggingfaceFamily. `dtype` is the type to give the weights; by default bf16 or fp16 where all
/// tensors have that type, else fp32. `device` must outlive the result. Throws BadInput for tensors that are missing,
/// have another shape than config.json says, or have no place in the model; its weights throw it for a tensor with NaN
/// or infinite numbers.
ImportedModel import_huggingface(const Path& folder, std::optional<DType> dtype, Device& device);

struct HuggingfaceExport {
  std::optional<DType> dtype = {};  ///< type of the weights; by default as in the checkpoint
  std::string model_type = {};      ///< of Hugging Face; empty = the first that can express the model
  Path tokenizer_model = {};        ///< sentencepiece model to go along, which says the special tokens; empty = none
  SpecialTokens tokens = {};        ///< statements of the checkpoint to write back; without any those of the tokenizer
  i64 max_file_bytes = kMaxSafetensorsBytes;
};

/// Writes the weights of a checkpoint as a folder that transformers' from_pretrained reads. `model` must be the model
/// of the checkpoint. Throws BadInput when no Hugging Face model type, or not that of the options, can express it, when
/// the folder already holds a model, and for a tensor with NaN or infinite numbers.
void export_huggingface(const Path& folder, const ModelConfig& model, CheckpointReader& checkpoint,
                        const HuggingfaceExport& options = {});

}  // namespace mcpp
