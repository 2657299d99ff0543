// Quantization of the weights of a Hugging Face model, as stated by 'quantization_config' of config.json.
#pragma once
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/fields.h"
#include "base/json.h"
#include "megatron_cpp/huggingface/config_json.h"

namespace mcpp {

/// Value of 'quant_method'. None: no quantization.
enum class QuantMethod : u8 {
  None,
  Fp8,               ///< E4M3 weights, each with a tensor "<weight>_scale_inv" of scales (DeepSeek-V3)
  Mxfp4,             ///< "<weight>_blocks" with two E2M1 values per byte, "<weight>_scales" in E8M0 (gpt-oss)
  CompressedTensors  ///< E4M3 weights, each with a tensor "<weight>_scale" of scales
};

template <>
struct EnumNames<QuantMethod> {
  static constexpr std::array<std::string_view, 4> value{"none", "fp8", "mxfp4", "compressed-tensors"};
};

/// Rows and columns of a weight that share a scale; 0 = all.
struct ScaleBlock {
  i64 rows = 0, columns = 0;
  bool operator==(const ScaleBlock&) const = default;
};

struct Quantization {
  QuantMethod method = QuantMethod::None;
  std::vector<ScaleBlock> blocks = {};  ///< possible blocks of fp8 weights; the shape of the scales determines which
};

/// Parses 'quantization_config'. Throws BadInput, naming the key and the allowed values, for other quantizations.
Quantization parse_quantization(const ConfigJson& config);

/// Returns 'quantization_config' of weights in fp8 with square blocks. `unquantized` are the modules in other types.
OrderedJson fp8_block_config(i64 block, const std::vector<std::string>& unquantized);

}  // namespace mcpp
