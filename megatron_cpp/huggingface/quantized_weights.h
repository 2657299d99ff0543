// Weights in the files of a Hugging Face model, which may be quantized (quantization.h). Reading dequantizes them
// exactly as transformers and compressed-tensors do.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/format/safetensors.h"
#include "megatron_cpp/huggingface/quantization.h"
#include "tensor/tensor.h"

namespace mcpp {

class WeightFiles {
 public:
  /// `folder` begins messages.
  WeightFiles(SafetensorsReader files, Quantization quantization, std::string folder);

  const SafetensorsReader& files() const { return files_; }
  /// Returns the shape of a weight after dequantization. Throws BadInput, naming the tensor, if the weight or its
  /// scales are missing or if their types or shapes do not match config.json.
  Shape shape(const std::string& name) const;
  /// Returns the type of a weight; std::nullopt if it is quantized.
  std::optional<SafeType> type(const std::string& name) const;
  /// Returns the names of the tensors that store a weight and its scales, and of the scales of its layer's activations.
  std::vector<std::string> stored_names(const std::string& name) const;
  /// Reads a weight, converted to `dtype`. Throws BadInput as shape() does, and if a scale is not finite.
  Tensor read(const std::string& name, DType dtype, Device& device) const;

 private:
  struct Scales {
    const SafeTensor* tensor = nullptr;
    ScaleBlock block = {};
  };
  bool is_fp8(const std::string& name) const;
  bool is_mxfp4(const std::string& name) const;
  Scales scales_of(const SafeTensor& weight) const;
  const SafeTensor& mxfp4_scales(const std::string& name) const;
  Tensor read_scales(const SafeTensor& scales, Device& device) const;
  Tensor read_fp8(const std::string& name, DType dtype, Device& device) const;
  Tensor read_mxfp4(const std::string& name, DType dtype, Device& device) const;

  SafetensorsReader files_;
  Quantization quantization_;
  std::string folder_;
};

/// Size of the blocks of an export.
inline constexpr i64 kFp8ExportBlock = 128;

/// Matrix in E4M3 with a scale per block of kFp8ExportBlock x kFp8ExportBlock elements. An element is its code's value
/// times the scale.
struct Fp8Blocks {
  std::vector<u8> codes;
  Tensor scales;  ///< fp32 [rows / kFp8ExportBlock, columns / kFp8ExportBlock]
};

/// Quantizes a matrix as transformers does: the largest magnitude of a block becomes 448. Blocks below kMinScale
/// (quantize.h) become zeros. Both sizes must be multiples of kFp8ExportBlock.
Fp8Blocks quantize_fp8_blocks(const Tensor& matrix);

}  // namespace mcpp
