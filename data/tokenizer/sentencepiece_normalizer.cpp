#include "data/tokenizer/sentencepiece_normalizer.h"

#include <algorithm>

#include "base/utf8.h"

namespace mcpp {
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

void SentencepieceNormalizer::append(std::string_view text, bool after_space, std::string& out) const {
  while (!text.empty()) {
    const std::size_t kept = kept_size(text);
    if (kept > 0) {
      out.append(text.substr(0, kept));
      text.remove_prefix(kept);
      after_space = false;  // a space is never kept if spaces are merged
      continue;
    }
    auto [replacement, size] = next_replacement(text);
    text.remove_prefix(size);
    if (after_space) replacement.remove_prefix(std::min(replacement.find_first_not_of(' '), replacement.size()));
    if (replacement.empty()) continue;
    append_with_spaces(replacement, out);
    after_space = merges_spaces_ && replacement.ends_with(' ');
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
