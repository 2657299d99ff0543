// Pieces and merges of a vocabulary as JSON and text have them.
#pragma once
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/json/json.h"
#include "data/tokenizer/bpe/bpe_description.h"

namespace mcpp {

/// Fills the pieces from an object {"piece": id}. BadInput for an id that is none, or that two pieces have.
void read_pieces(const Json& vocab, const std::string& source, BpeDescription& description);

/// Gives the id to another piece, such as an added token. BadInput when it has another already.
void add_piece(i64 id, const std::string& piece, const std::string& source, BpeDescription& description);

/// BadInput when an id below `end` has no piece.
void check_no_holes(const BpeDescription& description, i64 end, const std::string& source);

/// Finds pieces and appends merges by what they say.
class MergeReader {
 public:
  /// Both must outlive this.
  MergeReader(BpeDescription& description, const std::string& source);
  /// BadInput when the two pieces, or what they make, are not in the vocabulary.
  void add(const std::string& left, const std::string& right);
  /// The same of "left right".
  void add_line(std::string_view line);

 private:
  u32 id_of(const std::string& piece, const std::string& left, const std::string& right) const;

  BpeDescription& description_;
  const std::string& source_;
  std::unordered_map<std::string_view, u32> ids_;
};

}  // namespace mcpp
