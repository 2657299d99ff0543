#include "data/tokenizer/bpe/added_tokens.h"

#include <unicode/uchar.h>

#include <algorithm>

#include "base/utf8.h"

namespace mcpp {
namespace {

/// Returns the character at a position of valid UTF-8.
UChar32 character_after(std::string_view text, std::size_t at) {
  const auto first = static_cast<u8>(text[at]);
  const i64 length = utf8_sequence_length(text.substr(at));
  auto c = static_cast<UChar32>(length <= 1 ? first : first & (0x7F >> length));
  for (i64 i = 1; i < length; ++i) c = c << 6 | (static_cast<u8>(text[at + static_cast<std::size_t>(i)]) & 0x3F);
  return c;
}

UChar32 character_before(std::string_view text, std::size_t at) {
  return character_after(text, utf8_boundary(text, at - 1));
}

bool is_word(UChar32 c) {
  const i8 kind = u_charType(c);
  return u_isUAlphabetic(c) || (U_MASK(kind) & U_GC_M_MASK) != 0 || kind == U_DECIMAL_DIGIT_NUMBER ||
         kind == U_CONNECTOR_PUNCTUATION || u_hasBinaryProperty(c, UCHAR_JOIN_CONTROL);
}

bool is_single_word(std::string_view text, std::size_t begin, std::size_t end) {
  return (begin == 0 || !is_word(character_before(text, begin))) &&
         (end == text.size() || !is_word(character_after(text, end)));
}

std::size_t skip_spaces_back(std::string_view text, std::size_t at, std::size_t begin) {
  while (at > begin && u_isUWhiteSpace(character_before(text, at))) at = utf8_boundary(text, at - 1);
  return at;
}

std::size_t skip_spaces(std::string_view text, std::size_t at) {
  while (at < text.size() && u_isUWhiteSpace(character_after(text, at)))
    at += static_cast<std::size_t>(utf8_sequence_length(text.substr(at)));
  return at;
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  for (const AddedToken& token : tokens_) {
    Bucket& bucket = by_first_byte_[static_cast<u8>(token.content[0])];
    if (bucket.tokens.empty()) {
      bucket.common = token.content;
      first_bytes_ += token.content[0];
    }
    const auto differs = std::ranges::mismatch(bucket.common, token.content).in1;
    bucket.common = bucket.common.substr(0, static_cast<std::size_t>(differs - bucket.common.begin()));
    bucket.tokens.push_back(&token);
  }
  const auto size = [](const AddedToken* token) { return token->content.size(); };
  for (Bucket& bucket : by_first_byte_) std::ranges::stable_sort(bucket.tokens, std::ranges::greater(), size);
}

/// Returns the first position at or after `from` with a byte that a token begins with, or the end.
std::size_t AddedTokens::next_candidate(std::string_view text, std::size_t from) const {
  if (first_bytes_.size() <= 1)
    return first_bytes_.empty() ? text.size() : std::min(text.find(first_bytes_[0], from), text.size());
  while (from < text.size() && by_first_byte_[static_cast<u8>(text[from])].tokens.empty()) ++from;
  return from;
}

const AddedToken* AddedTokens::token_at(std::string_view text) const {
  const Bucket& bucket = by_first_byte_[static_cast<u8>(text[0])];
  if (!text.starts_with(bucket.common)) return nullptr;
  const auto it =
      std::ranges::find_if(bucket.tokens, [&](const AddedToken* token) { return text.starts_with(token->content); });
  return it == bucket.tokens.end() ? nullptr : *it;
}

/// Text before `done` cannot become part of a token.
AddedTokens::Found AddedTokens::find(std::string_view text, std::size_t from, std::size_t done) const {
  for (std::size_t at = next_candidate(text, from); at < text.size(); at = next_candidate(text, at)) {
    const AddedToken* token = token_at(text.substr(at));
    if (!token) {
      ++at;
      continue;
    }
    const std::size_t next = at + token->content.size();
    if (token->single_word && !is_single_word(text, at, next)) {
      at = next;
      continue;
    }
    const std::size_t begin = token->lstrip ? std::max(done, skip_spaces_back(text, at, 0)) : at;
    return {token, begin, token->rstrip ? skip_spaces(text, next) : next, next};
  }
  return {};
}

}  // namespace mcpp
