// What a sentencepiece model file says of its pieces and of how it reads text: all that another program needs to encode
// alike. The library itself gives only part of it away.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"

namespace mcpp {

/// The numbers are those of sentencepiece_model.proto.
enum class PieceType : u8 { Normal = 1, Unknown = 2, Control = 3, UserDefined = 4, Unused = 5, Byte = 6 };
enum class SegmentationType : u8 { Unigram = 1, Bpe = 2, Word = 3, Char = 4 };

inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  ///< U+2581, how pieces spell a space

struct SentencePiece {
  std::string text;  ///< with kSpaceMark for a space
  float score = 0;
  PieceType type = PieceType::Normal;
};

struct SentencepieceModel {
  std::vector<SentencePiece> pieces;
  SegmentationType type = SegmentationType::Unigram;
  bool treat_whitespace_as_suffix = false;
  std::string bos_piece = "<s>";  ///< how a piece before every text is called; there need not be one
  std::string charsmap;           ///< table of characters to replace; empty = none
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
};

/// `file` is a serialized ModelProto. Throws BadInput, naming `source`, when it is none.
SentencepieceModel parse_sentencepiece_model(std::string_view file, const std::string& source);

/// `piece` with spaces for its marks.
std::string with_spaces(std::string_view piece);

/// Rounds the scores of all pieces to multiples of 2^-10. Sums of them are then exact in fp32 for any block that
/// Tokenizer encodes, so that two ways to spell a text either tie for every program that adds them up, in whatever
/// order and precision, or for none. Changes `file` in place.
void round_scores(std::string& file, const std::string& source);

}  // namespace mcpp
