#include "tensor/checksum.h"

#include <cstddef>
#include <vector>

#include "base/file.h"
#include "tensor/transfer.h"

namespace mcpp {

std::string checksum_of(const Tensor& value) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(value.bytes()));
  if (!bytes.empty()) read_bytes(value, bytes.data());
  return checksum_hex(bytes);
}

}  // namespace mcpp
