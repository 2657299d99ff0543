// Formats in which gradients are sent for reduction.
#pragma once
#include "tensor/dtype.h"

namespace mcpp {

enum class GradWire : u8 {
  Full,  ///< not encoded
  Bf16,  ///< rounded to bf16
  Byte,  ///< int8 with block scales
};

/// Returns the dtype of encoded messages (tensor/ops/narrow/pack.h).
constexpr DType message_type(GradWire wire) {
  return wire == GradWire::Byte ? DType::I32 : DType::BF16;
}

}  // namespace mcpp
