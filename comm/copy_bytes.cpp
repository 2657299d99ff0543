#include "comm/copy_bytes.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <cstring>

namespace mcpp {
namespace {

#ifdef __SSE2__

/// Copy size above which source and destination, over all ranks copying concurrently, exceed the caches.
constexpr i64 kLargeBytes = 8 << 20;
constexpr i64 kLineBytes = 64;

/// Copies full cache lines with non-temporal stores. `to` must be aligned to a cache line.
void stream_lines(std::byte* to, const std::byte* from, i64 lines) {
  auto* out = reinterpret_cast<__m128i*>(to);
  const auto* in = reinterpret_cast<const __m128i*>(from);
  for (; lines > 0; --lines, in += 4, out += 4) {
    const __m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1), c = _mm_loadu_si128(in + 2),
                  d = _mm_loadu_si128(in + 3);
    _mm_stream_si128(out, a);
    _mm_stream_si128(out + 1, b);
    _mm_stream_si128(out + 2, c);
    _mm_stream_si128(out + 3, d);
  }
  _mm_sfence();  // makes the data visible before a ready flag
}

void copy_large(std::byte* to, const std::byte* from, i64 bytes) {
  const i64 head = -static_cast<i64>(reinterpret_cast<std::uintptr_t>(to)) & (kLineBytes - 1);
  const i64 lines = (bytes - head) / kLineBytes, body = head + lines * kLineBytes;
  std::memcpy(to, from, static_cast<std::size_t>(head));
  stream_lines(to + head, from + head, lines);
  std::memcpy(to + body, from + body, static_cast<std::size_t>(bytes - body));
}

#endif

}  // namespace

void copy_bytes(void* to, const void* from, i64 bytes) {
  if (bytes <= 0 || to == from) return;
#ifdef __SSE2__
  if (bytes >= kLargeBytes) return copy_large(static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes);
#endif
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

}  // namespace mcpp
