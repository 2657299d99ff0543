// SHA-256 and HMAC-SHA-256, for signatures. Checksums of data are XXH3 (checksum.h), which is much faster.
#pragma once
#include <array>
#include <span>
#include <string>
#include <string_view>

namespace mcpp {

using Sha256Digest = std::array<std::byte, 32>;

Sha256Digest sha256(std::span<const std::byte> bytes);
Sha256Digest sha256(std::string_view text);
/// Returns the keyed hash of `text` (RFC 2104).
Sha256Digest hmac_sha256(std::span<const std::byte> key, std::string_view text);
/// Returns the digest as 64 hexadecimal digits.
std::string to_hex(const Sha256Digest& digest);

}  // namespace mcpp
