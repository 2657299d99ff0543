// How gradients travel between ranks to where they are summed.
#pragma once
#include "tensor/dtype.h"

namespace mcpp {

enum class GradWire : u8 {
  Full,  ///< as they are
  Bf16,  ///< rounded to bf16
  Byte,  ///< in a byte each
};

/// Of the messages of those that do not travel as they are (tensor/ops/narrow/pack.h).
constexpr DType message_type(GradWire wire) {
  return wire == GradWire::Byte ? DType::I32 : DType::BF16;
}

}  // namespace mcpp
