// XXH3-128 checksums of text and of streamed data. checksum_hex() of base/file.h returns the same digits for contiguous
// bytes.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/types.h"

namespace mcpp {

class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(const Checksum&) = delete;
  Checksum& operator=(const Checksum&) = delete;

  void update(std::span<const std::byte> bytes);
  /// Returns the checksum of all bytes so far as 32 hexadecimal digits. More bytes may follow.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string checksum_hex(std::string_view text);

}  // namespace mcpp
