// Checksums of tensors.
#pragma once
#include <string>

#include "tensor/tensor.h"

namespace mcpp {

/// Returns a checksum of the values of a tensor. Waits for the device.
std::string checksum_of(const Tensor& value);

}  // namespace mcpp
