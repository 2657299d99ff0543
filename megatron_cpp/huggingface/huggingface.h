// Import and export of Hugging Face models: folders with config.json and safetensors. Values are copied without
// arithmetic, so that a round trip is bitwise identical, except for quantized weights.
#pragma once
#include <memory>
#include <optional>

#include "checkpoint/format/safetensors.h"
#include "checkpoint/format/shard.h"
#include "checkpoint/load/reader.h"
#include "megatron_cpp/huggingface/huggingface_config.h"
#include "megatron_cpp/resume/weight_source.h"
#include "model/config/config.h"

namespace mcpp {

/// Model read from a Hugging Face folder.
struct ImportedModel {
  ModelConfig model;
  /// Parameters of the imported model ("model/..."), loaded one at a time. Rows of the padded vocabulary are zero.
  std::unique_ptr<ShardSource> weights;
  /// Prefixes, such as "model.layers.61.", of tensors for multi-token prediction that were not imported.
  std::vector<std::string> skipped_layers = {};
  i64 absent_layers = 0;       ///< number of layers for multi-token prediction in config.json if the file has none
  bool ignores_index = false;  ///< model.safetensors was read even though model.safetensors.index.json exists
};

/// Opens a model of a HuggingfaceFamily, whose weights may be quantized (quantization.h). `dtype` is the type to
/// convert the weights to; std::nullopt = bf16 or fp16 if all tensors that are not quantized have that type, otherwise
/// fp32. `device` must outlive the result. `prediction_layers` is the number of layers for multi-token prediction to
/// import; std::nullopt = all layers in the file. Throws BadInput for tensors that are missing, have a different shape
/// than config.json implies, or have no counterpart in the model, and for copies of the word embeddings or the output
/// matrix with different values. Reading a weight throws BadInput if it has NaN or infinite values.
ImportedModel import_huggingface(const Path& folder, std::optional<DType> dtype, Device& device,
                                 std::optional<i64> prediction_layers = {});

/// Quantization of exported weights. Fp8Block: E4M3 with an fp32 scale per block of 128 x 128, as in DeepSeek-V3, for
/// the matrices of attention, MLPs and experts whose sizes are multiples of 128.
enum class ExportQuantization : u8 { None, Fp8Block };

template <>
struct EnumNames<ExportQuantization> {
  static constexpr std::array<std::string_view, 2> value{"none", "fp8_block"};
};

/// Options of export_huggingface().
struct HuggingfaceExport {
  std::optional<DType> dtype = {};  ///< type of the weights; std::nullopt = as in the checkpoint
  ExportQuantization quantization = ExportQuantization::None;
  WeightSource weights = WeightSource::Model;
  std::string model_type = {};  ///< Hugging Face model type; empty = the first type that can express the model
  Path tokenizer_model = {};    ///< sentencepiece model to export, which determines the special tokens; empty = none
  /// Special tokens that the checkpoint's original Hugging Face files stated, to write back. If empty, the tokenizer's
  /// special tokens are written.
  SpecialTokens tokens = {};
  i64 max_file_bytes = kMaxSafetensorsBytes;  ///< size at which a new safetensors file begins
};

/// Writes the weights of a checkpoint to a folder that from_pretrained() of transformers reads. `model` must be the
/// model of the checkpoint. Throws BadInput if the requested model type (or, if none is requested, every type) cannot
/// express the model, if the folder already holds a model, if a tensor has NaN or infinite values, or if a quantization
/// is requested and the model type stores transposed matrices or no matrix has suitable sizes.
void export_huggingface(const Path& folder, const ModelConfig& model, CheckpointReader& checkpoint,
                        const HuggingfaceExport& options = {});

// Conversion of a dense model to a mixture of experts that are initialized with its MLPs (Komatsuzaki et al., "Sparse
// Upcycling", 2023).

/// Returns the weights of `upcycled`, which must equal the model of the checkpoint except for its experts. Every expert
/// is a copy of its layer's MLP. Routers are initialized randomly, as a function of name and seed. If the routing
/// weights of each token sum to 1, the outputs of the model do not change. Holds one tensor in memory at a time. Throws
/// BadInput if the width of an MLP differs from that of the experts or if there is a shared expert. `device` and
/// `dense` must outlive the result.
std::unique_ptr<ShardSource> upcycle(CheckpointReader& dense, const ModelConfig& upcycled, u64 seed, Device& device);

}  // namespace mcpp
