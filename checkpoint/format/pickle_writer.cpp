#include "checkpoint/format/pickle_writer.h"

#include <bit>

#include "base/check.h"

namespace mcpp {
namespace {

template <class T>
std::string_view bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

}  // namespace

PickleWriter& PickleWriter::integer(i64 value) {
  return op("\x8a\x08").op(bytes_of(value));
}

PickleWriter& PickleWriter::number(double value) {
  return op("G").op(bytes_of(__builtin_bswap64(std::bit_cast<u64>(value))));
}

PickleWriter& PickleWriter::text(std::string_view value) {
  MCPP_CHECK(value.size() <= 0xffffffff, "too long");
  return op("X").op(bytes_of(static_cast<u32>(value.size()))).op(value);
}

PickleWriter& PickleWriter::global(std::string_view module, std::string_view name) {
  return op("c").op(module).op("\n").op(name).op("\n");
}

PickleWriter& PickleWriter::integers(const std::vector<i64>& values) {
  begin_tuple();
  for (const i64 value : values) integer(value);
  return end_tuple();
}

PickleWriter& PickleWriter::object(std::string_view module, std::string_view name) {
  return global(module, name).op(")\x81");
}

}  // namespace mcpp
