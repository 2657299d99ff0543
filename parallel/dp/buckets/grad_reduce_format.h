// Formats in which gradients are sent for reduction.
#pragma once
#include "tensor/dtype.h"

namespace mcpp {

enum class GradReduceFormat : u8 {
  Full,  ///< not encoded
  Bf16,  ///< rounded to bf16
  Int8,  ///< int8 with block scales
};

/// Returns the dtype of encoded messages (tensor/ops/low_precision/pack.h).
constexpr DType message_type(GradReduceFormat format) {
  return format == GradReduceFormat::Int8 ? DType::I32 : DType::BF16;
}

}  // namespace mcpp
