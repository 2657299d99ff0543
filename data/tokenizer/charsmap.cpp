#include "data/tokenizer/charsmap.h"

#include <cstring>
#include <functional>

#include "base/check.h"
#include "base/types.h"

namespace mcpp {
namespace {

// Field numbers of sentencepiece_model.proto.
constexpr u64 kNormalizerSpec = 3, kDenormalizerSpec = 5, kPrecompiledCharsmap = 2;

/// Reads a protocol buffer's fields one after another.
class ProtoReader {
 public:
  ProtoReader(std::string_view bytes, const std::string& source) : rest_(bytes), source_(source) {}

  /// Calls visit(field number, content) for each field that is a string of bytes or a message.
  void for_each_bytes(const std::function<void(u64, std::string_view)>& visit) {
    while (!rest_.empty()) {
      const u64 tag = varint();
      switch (tag & 7) {
        case 0:
          varint();
          break;
        case 1:
          take(8);
          break;
        case 2: {
          const u64 size = varint();
          visit(tag >> 3, take(size));
          break;
        }
        case 5:
          take(4);
          break;
        default:
          damaged();
      }
    }
  }

 private:
  [[noreturn]] void damaged() const {
    fail(ExitCode::BadInput, "tokenizer model ", source_, ": not a sentencepiece model, or damaged");
  }
  std::string_view take(u64 size) {
    if (size > rest_.size()) damaged();
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }
  u64 varint() {
    u64 value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<u8>(take(1)[0]);
      value |= static_cast<u64>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    damaged();
  }

  std::string_view rest_;
  const std::string& source_;
};

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
  ProtoReader(model, source).for_each_bytes([&](u64 field, std::string_view spec) {
    if (field != kNormalizerSpec && field != kDenormalizerSpec) return;
    ProtoReader(spec, source).for_each_bytes([&](u64 inner, std::string_view table) {
      check_input(inner != kPrecompiledCharsmap || table.empty() || keeps_to_itself(table), "tokenizer model ", source,
                  ": damaged: its table of characters points outside of itself");
    });
  });
}

}  // namespace mcpp
