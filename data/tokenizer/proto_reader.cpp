#include "data/tokenizer/proto_reader.h"

#include "base/check.h"

namespace mcpp {

bool ProtoReader::next(ProtoField& field) {
  if (remaining_.empty()) return false;
  const u64 tag = varint();
  field = ProtoField();
  field.number = tag >> 3;
  switch (tag & 7) {
    case 0:
      field.integer = varint();
      break;
    case 1:
      field.bytes = take(8);
      break;
    case 2: {
      const u64 size = varint();
      field.bytes = take(size);
      break;
    }
    case 5:
      field.bytes = take(4);
      break;
    default:
      fail_damaged();
  }
  return true;
}

void ProtoReader::fail_damaged() const {
  fail(ExitCode::BadInput, "tokenizer model ", source_, ": not a sentencepiece model, or damaged");
}

std::string_view ProtoReader::take(u64 size) {
  if (size > remaining_.size()) fail_damaged();
  const std::string_view taken = remaining_.substr(0, size);
  remaining_.remove_prefix(size);
  return taken;
}

u64 ProtoReader::varint() {
  u64 value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    const auto byte = static_cast<u8>(take(1)[0]);
    value |= static_cast<u64>(byte & 0x7F) << shift;
    if (byte < 0x80) return value;
  }
  fail_damaged();
}

}  // namespace mcpp
