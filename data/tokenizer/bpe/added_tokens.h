// Tokens that are searched in a text before any other step.
#pragma once
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/bpe/bpe_description.h"

namespace mcpp {

class AddedTokens {
 public:
  /// `tokens` must be spelled as in the texts that are searched. No token may be empty.
  explicit AddedTokens(std::vector<AddedToken> tokens);
  AddedTokens(const AddedTokens&) = delete;
  AddedTokens& operator=(const AddedTokens&) = delete;

  /// Calls text(part, offset) for text between tokens and token(id) for tokens, in order. The longest token at each
  /// position wins. If it must be a complete word but is part of a longer one, it is skipped entirely, as in
  /// `tokenizers`.
  template <class Text, class Token>
  void split(std::string_view all, Text&& text, Token&& token) const {
    std::size_t done = 0;
    for (Found found = find(all, 0, done); found.token; found = find(all, found.next, done)) {
      if (done < found.begin) text(all.substr(done, found.begin - done), done);
      token(found.token->id);
      done = found.end;
    }
    if (done < all.size()) text(all.substr(done), done);
  }

 private:
  struct Found {
    const AddedToken* token = nullptr;
    std::size_t begin = 0, end = 0;  // including the white space it absorbs
    std::size_t next = 0;            // position at which the search continues
  };
  /// Tokens that begin with the same byte, longest first.
  struct Bucket {
    std::string_view common;  // common prefix of all tokens
    std::vector<const AddedToken*> tokens;
  };
  std::size_t next_candidate(std::string_view text, std::size_t from) const;
  const AddedToken* token_at(std::string_view text) const;
  Found find(std::string_view text, std::size_t from, std::size_t done) const;

  std::vector<AddedToken> tokens_;
  std::array<Bucket, 256> by_first_byte_;
  std::string first_bytes_;
};

}  // namespace mcpp
