// Names of weights in checkpoints of other training programs.
#pragma once
#include <string_view>

#include "checkpoint/load/tensor_files.h"
#include "megatron_cpp/huggingface/weight_map.h"

namespace mcpp {

/// Program whose names the weights have.
enum class WeightFormat : u8 { Huggingface, Torchtitan, Megatron };
std::string_view name_of(WeightFormat format);

/// Returns the format of the names of these tensors.
WeightFormat detect_format(const TensorFiles& files);

/// Returns the names of torchtitan's Llama. RoPE rotates adjacent channels of its queries and keys.
WeightNames torchtitan_names();
/// Returns the names of Megatron Core as MegatronFiles presents them. `files` determine whether experts, and gates and
/// up projections, are fused or separate tensors.
WeightNames megatron_names(const ModelConfig& model, const TensorFiles& files);

}  // namespace mcpp
