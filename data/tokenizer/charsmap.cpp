#include "data/tokenizer/charsmap.h"

#include <cstring>

#include "base/check.h"
#include "data/tokenizer/proto_reader.h"

namespace mcpp {
namespace {

// Field numbers of sentencepiece_model.proto.
constexpr u64 kNormalizer = 3, kDenormalizer = 5, kCharsmap = 2;

/// A unit of darts-clone's double array: a node, reached by the byte it is labelled with, or the value of one.
class Unit {
 public:
  explicit Unit(u32 bits) : bits_(bits) {}
  bool is_value() const { return bits_ >> 31 != 0; }
  bool has_value() const { return (bits_ >> 8 & 1) != 0; }
  u32 value() const { return bits_ & 0x7FFF'FFFF; }
  u32 offset() const { return (bits_ >> 10) << ((bits_ & 1u << 9) >> 6); }

 private:
  u32 bits_;
};

/// A table: u32 bytes of the double array, the array, and the replacements, each ended by a zero byte, that its values
/// point to. Whether the library, from whichever node, stays inside both.
bool keeps_to_itself(std::string_view table) {
  u32 array_bytes = 0;
  if (table.size() < sizeof array_bytes) return false;
  std::memcpy(&array_bytes, table.data(), sizeof array_bytes);
  table.remove_prefix(sizeof array_bytes);
  const u32 units = array_bytes / u32{sizeof(u32)};
  if (array_bytes > table.size() || array_bytes % sizeof(u32) != 0 || units == 0) return false;
  const std::string_view replacements = table.substr(array_bytes);
  if (replacements.empty() || replacements.back() != '\0') return false;
  const auto unit_at = [&](u32 i) {
    u32 bits = 0;
    std::memcpy(&bits, table.data() + i * sizeof bits, sizeof bits);
    return Unit(bits);
  };
  for (u32 i = 0; i < units; ++i) {
    const Unit node = unit_at(i);
    if (node.is_value() && i > 0) continue;  // no byte leads here
    const u32 children = i ^ node.offset();  // the child of a byte is at children ^ byte
    if ((children | 0xFF) >= units) return false;
    if (node.has_value() && unit_at(children).value() >= replacements.size()) return false;
  }
  return true;
}

}  // namespace

void check_charsmaps(std::string_view model, const std::string& source) {
  ProtoReader specs(model, source);
  for (ProtoField spec; specs.next(spec);) {
    if (spec.number != kNormalizer && spec.number != kDenormalizer) continue;
    ProtoReader reader(spec.bytes, source);
    for (ProtoField field; reader.next(field);) {
      check_input(field.number != kCharsmap || field.bytes.empty() || keeps_to_itself(field.bytes), "tokenizer model ",
                  source, ": damaged: its table of characters points outside of itself");
    }
  }
}

}  // namespace mcpp
