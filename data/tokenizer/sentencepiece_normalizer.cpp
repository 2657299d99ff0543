#include "data/tokenizer/sentencepiece_normalizer.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/utf8.h"
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
bool has_only_inside_references(std::string_view table) {
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
      check_input(field.number != kCharsmap || field.bytes.empty() || has_only_inside_references(field.bytes),
                  "tokenizer model ", source, ": damaged: its character map has an offset outside of the map");
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

namespace {

ByteTrie user_defined_symbols(const SentencepieceModel& model) {
  std::vector<std::pair<std::string_view, i32>> symbols;
  for (const SentencePiece& piece : model.pieces)
    if (piece.type == PieceType::UserDefined) symbols.emplace_back(piece.text, 0);
  return ByteTrie(std::move(symbols));
}

void append_with_spaces(std::string_view text, std::string& out) {
  if (text.find(kSpaceMark) == std::string_view::npos)
    out.append(text);
  else
    out.append(with_spaces(text));
}

}  // namespace

SentencepieceNormalizer::SentencepieceNormalizer(const SentencepieceModel& model)
    : charsmap_(model.charsmap),
      symbols_(user_defined_symbols(model)),
      adds_prefix_(model.add_dummy_prefix && !model.treat_whitespace_as_suffix),
      adds_suffix_(model.add_dummy_prefix && model.treat_whitespace_as_suffix),
      merges_spaces_(model.remove_extra_whitespaces) {
  for (u32 byte = 0; byte < 0x80; ++byte) is_kept_[byte] = charsmap_.keeps(static_cast<u8>(byte));
  if (merges_spaces_) is_kept_[static_cast<u8>(' ')] = false;
  for (const SentencePiece& piece : model.pieces)
    if (piece.type == PieceType::UserDefined) is_kept_[static_cast<u8>(piece.text[0])] = false;
}

/// Returns the replacement of the first character or characters of `text`, and their size in bytes.
std::pair<std::string_view, std::size_t> SentencepieceNormalizer::next_replacement(std::string_view text) const {
  if (const std::size_t size = symbols_.longest_prefix(text); size > 0) return {text.substr(0, size), size};
  const auto match = charsmap_.longest_match(text);
  if (match.second > 0) return match;
  const auto size = static_cast<std::size_t>(std::max<i64>(utf8_sequence_length(text), 1));
  return {text.substr(0, size), size};
}

/// Returns the size of the longest prefix of `text` that no rule changes, as far as known without looking rules up.
std::size_t SentencepieceNormalizer::kept_size(std::string_view text) const {
  std::size_t size = 0;
  while (size < text.size() && is_kept_[static_cast<u8>(text[size])]) ++size;
  const bool may_combine = size > 0 && size < text.size() && static_cast<u8>(text[size]) >= 0x80;
  return may_combine ? size - 1 : size;
}

void SentencepieceNormalizer::append(std::string_view text, bool is_after_space, std::string& out) const {
  while (!text.empty()) {
    const std::size_t unchanged_size = kept_size(text);
    if (unchanged_size > 0) {
      out.append(text.substr(0, unchanged_size));
      text.remove_prefix(unchanged_size);
      is_after_space = false;  // a space is never kept if spaces are merged
      continue;
    }
    auto [replacement, size] = next_replacement(text);
    text.remove_prefix(size);
    if (is_after_space) replacement.remove_prefix(std::min(replacement.find_first_not_of(' '), replacement.size()));
    if (replacement.empty()) continue;
    append_with_spaces(replacement, out);
    is_after_space = merges_spaces_ && replacement.ends_with(' ');
  }
}

bool SentencepieceNormalizer::ends_in_space(std::string_view text) const {
  bool is_space = false;
  while (!text.empty()) {
    auto [replacement, size] = next_replacement(text);
    text.remove_prefix(size);
    if (is_space) replacement.remove_prefix(std::min(replacement.find_first_not_of(' '), replacement.size()));
    if (!replacement.empty()) is_space = replacement.ends_with(' ');
  }
  return is_space;
}

std::string_view SentencepieceNormalizer::apply(std::string_view text, const TextPart& part,
                                                std::string& buffer) const {
  const bool has_prefix = adds_prefix_ && part.begins, has_suffix = adds_suffix_ && part.ends;
  const bool keeps_all = charsmap_.empty() && !merges_spaces_;
  if (text.empty() || (keeps_all && !has_prefix && !has_suffix && text.find(kSpaceMark) == std::string_view::npos))
    return text;
  buffer.clear();
  if (merges_spaces_ && part.begins) {
    while (!text.empty()) {
      const auto [replacement, size] = next_replacement(text);
      if (replacement != " ") break;
      text.remove_prefix(size);
    }
    if (text.empty()) return text;
  }
  buffer.reserve(text.size() + 2);
  if (has_prefix) buffer.push_back(' ');
  if (keeps_all)
    append_with_spaces(text, buffer);
  else
    append(text, merges_spaces_ && (part.begins || ends_in_space(part.before)), buffer);
  while (merges_spaces_ && part.ends && buffer.ends_with(' ')) buffer.pop_back();
  if (has_suffix) buffer.push_back(' ');
  return buffer;
}

}  // namespace mcpp
