// XXH3-128 of text, and of data that comes in pieces. For bytes at hand, checksum_hex() of base/file.h gives the same
// digits.
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
  /// Of everything so far, as 32 hexadecimal digits; more may follow.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string checksum_hex(std::string_view text);

}  // namespace mcpp
