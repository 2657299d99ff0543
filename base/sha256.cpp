#include "base/sha256.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "base/types.h"

namespace mcpp {
namespace {

constexpr std::size_t kBlockBytes = 64, kRounds = 64;

constexpr std::array<u32, kRounds> kRoundConstants{
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

using State = std::array<u32, 8>;

u32 load_big_endian(const std::byte* from) {
  u32 value = 0;
  std::memcpy(&value, from, sizeof value);
  return std::endian::native == std::endian::little ? __builtin_bswap32(value) : value;
}

void store_big_endian(u32 value, std::byte* to) {
  if (std::endian::native == std::endian::little) value = __builtin_bswap32(value);
  std::memcpy(to, &value, sizeof value);
}

/// Adds one block to the hash (FIPS 180-4, section 6.2.2).
void add_block(const std::byte* block, State& state) {
  std::array<u32, kRounds> w{};
  for (std::size_t i = 0; i < 16; ++i) w[i] = load_big_endian(block + 4 * i);
  for (std::size_t i = 16; i < kRounds; ++i) {
    const u32 a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + w[i - 7] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ (a >> 3)) +
           (std::rotr(b, 17) ^ std::rotr(b, 19) ^ (b >> 10));
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (std::size_t i = 0; i < kRounds; ++i) {
    const u32 sum1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25), choice = (e & f) ^ (~e & g);
    const u32 t1 = h + sum1 + choice + kRoundConstants[i] + w[i];
    const u32 sum0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22), majority = (a & b) ^ (a & c) ^ (b & c);
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + sum0 + majority;
  }
  const State next{a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < state.size(); ++i) state[i] += next[i];
}

}  // namespace

Sha256Digest sha256(std::span<const std::byte> bytes) {
  State state{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  const u64 bits = u64{8} * bytes.size();
  for (; bytes.size() >= kBlockBytes; bytes = bytes.subspan(kBlockBytes)) add_block(bytes.data(), state);
  // The end is padded with a one bit, zeros and the number of bits: one or two blocks.
  std::array<std::byte, 2 * kBlockBytes> end{};
  std::ranges::copy(bytes, end.begin());
  end[bytes.size()] = std::byte{0x80};
  const std::size_t padded = bytes.size() + 9 <= kBlockBytes ? kBlockBytes : 2 * kBlockBytes;
  store_big_endian(static_cast<u32>(bits >> 32), end.data() + padded - 8);
  store_big_endian(static_cast<u32>(bits), end.data() + padded - 4);
  for (std::size_t i = 0; i < padded; i += kBlockBytes) add_block(end.data() + i, state);
  Sha256Digest digest{};
  for (std::size_t i = 0; i < state.size(); ++i) store_big_endian(state[i], digest.data() + 4 * i);
  return digest;
}

Sha256Digest sha256(std::string_view text) {
  return sha256(std::as_bytes(std::span(text)));
}

Sha256Digest hmac_sha256(std::span<const std::byte> key, std::string_view text) {
  const Sha256Digest hashed_key = key.size() > kBlockBytes ? sha256(key) : Sha256Digest{};
  if (key.size() > kBlockBytes) key = hashed_key;
  std::vector<std::byte> inner(kBlockBytes, std::byte{0x36}), outer(kBlockBytes, std::byte{0x5c});
  for (std::size_t i = 0; i < key.size(); ++i) inner[i] ^= key[i], outer[i] ^= key[i];
  const auto message = std::as_bytes(std::span(text));
  inner.insert(inner.end(), message.begin(), message.end());
  const Sha256Digest digest = sha256(inner);
  outer.insert(outer.end(), digest.begin(), digest.end());
  return sha256(outer);
}

std::string to_hex(const Sha256Digest& digest) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : digest) {
    text += kDigits[std::to_integer<std::size_t>(byte >> 4)];
    text += kDigits[std::to_integer<std::size_t>(byte & std::byte{15})];
  }
  return text;
}

}  // namespace mcpp
