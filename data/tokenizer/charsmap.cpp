#include "data/tokenizer/charsmap.h"

#include <cstring>

#include "base/check.h"
#include "data/tokenizer/proto_reader.h"

namespace mcpp {
namespace {

// Field numbers of sentencepiece_model.proto.
constexpr u64 kNormalizer = 3, kDenormalizer = 5, kCharsmap = 2;

/// Unit of darts-clone's double array: a node, reached by its byte label, or the value of one.
class Unit {
 public:
  explicit Unit(u32 bits) : bits_(bits) {}
  bool is_value() const { return bits_ >> 31 != 0; }
  bool is_child_of(u8 byte) const { return (bits_ & (1u << 31 | 0xFF)) == byte; }
  bool has_value() const { return (bits_ >> 8 & 1) != 0; }
  u32 value() const { return bits_ & 0x7FFF'FFFF; }
  u32 offset() const { return (bits_ >> 10) << ((bits_ & 1u << 9) >> 6); }

 private:
  u32 bits_;
};

/// Returns true if lookups stay within the table from any node. A table consists of the size of the double array in
/// bytes as u32, the array, and the zero-terminated replacements that its values point to.
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

Charsmap::Charsmap(std::string_view table) {
  if (table.empty()) return;
  u32 array_bytes = 0;
  std::memcpy(&array_bytes, table.data(), sizeof array_bytes);
  table.remove_prefix(sizeof array_bytes);
  units_.resize(array_bytes / sizeof(u32));
  std::memcpy(units_.data(), table.data(), array_bytes);
  replacements_ = table.substr(array_bytes);
  for (u32 byte = 0; byte < 0x80; ++byte) keeps_[byte] = !has_ascii_entry(static_cast<u8>(byte));
}

bool Charsmap::has_ascii_entry(u8 byte) const {
  const u32 first = Unit(units_[0]).offset() ^ byte;
  const Unit node(units_[first]);
  if (!node.is_child_of(byte)) return false;
  if (node.has_value()) return true;
  for (u32 next = 1; next < 0x80; ++next)
    if (Unit(units_[first ^ node.offset() ^ next]).is_child_of(static_cast<u8>(next))) return true;
  return false;
}

std::pair<std::string_view, std::size_t> Charsmap::longest_match(std::string_view text) const {
  constexpr int kMaxEntries = 32;  // number that the library examines
  std::pair<std::string_view, std::size_t> longest;
  if (empty()) return longest;
  u32 children = Unit(units_[0]).offset();
  int entries = 0;
  for (std::size_t size = 0; size < text.size() && entries < kMaxEntries;) {
    const auto byte = static_cast<u8>(text[size++]);
    const u32 position = children ^ byte;
    const Unit node(units_[position]);
    if (!node.is_child_of(byte)) break;
    children = position ^ node.offset();
    if (!node.has_value()) continue;
    ++entries;
    longest = {std::string_view(replacements_.c_str() + Unit(units_[children]).value()), size};
  }
  return longest;
}

}  // namespace mcpp
