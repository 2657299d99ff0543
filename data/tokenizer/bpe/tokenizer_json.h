// Reader and writer of tokenizer.json of `tokenizers`, for byte pair encoding.
#pragma once
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/json.h"
#include "data/tokenizer/bpe/bpe_description.h"

namespace mcpp {

// Pieces and merges of a vocabulary in JSON and text form.

/// Sets the pieces from an object {"piece": id}. Throws BadInput for an invalid or duplicate id.
void read_pieces(const Json& vocab, const std::string& source, BpeDescription& description);

/// Assigns the id to an additional piece, such as an added token. Throws BadInput if the piece or the id conflicts with
/// an existing one.
void add_piece(i64 id, const std::string& piece, const std::string& source, BpeDescription& description);

/// Throws BadInput if an id below `end` has no piece.
void check_no_holes(const BpeDescription& description, i64 end, const std::string& source);

/// Looks up pieces and appends merges by their spelling.
class MergeReader {
 public:
  MergeReader(BpeDescription& description, const std::string& source);
  /// Appends a merge. Throws BadInput if the two pieces or their concatenation are not in the vocabulary.
  void add(const std::string& left, const std::string& right);
  /// Appends a merge given as "left right".
  void add_line(std::string_view line);

 private:
  u32 id_of(const std::string& piece, const std::string& left, const std::string& right) const;

  BpeDescription& description_;
  const std::string& source_;
  std::unordered_map<std::string_view, u32> ids_;
};

/// Parses `text` as a tokenizer.json. Throws BadInput, naming `source` and the reason, if it is damaged, contradictory
/// or unsupported, such as a model other than BPE.
BpeDescription parse_tokenizer_json(std::string_view text, const std::string& source);

/// Returns `tokens` in the format of the member "added_tokens" of a tokenizer.json.
OrderedJson added_tokens_json(const std::vector<AddedToken>& tokens);

/// Returns the number of ids of a tokenizer.json with any model. Throws BadInput if `text` is not JSON or has no model.
i64 count_tokens(std::string_view text, const std::string& source);

}  // namespace mcpp
