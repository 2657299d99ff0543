// Content of a sentencepiece model file that determines the ids of a text: the pieces and the normalization. The
// sentencepiece library exposes only part of this content.
#pragma once
#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"

namespace mcpp {

/// Piece types, with the values of sentencepiece_model.proto.
enum class PieceType : u8 { Normal = 1, Unknown = 2, Control = 3, UserDefined = 4, Unused = 5, Byte = 6 };
enum class SegmentationType : u8 { Unigram = 1, Bpe = 2, Word = 3, Char = 4 };

inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  ///< U+2581, which represents a space in pieces

struct SentencePiece {
  std::string text;  ///< text with kSpaceMark for a space
  float score = 0;
  PieceType type = PieceType::Normal;
};

struct SentencepieceModel {
  std::vector<SentencePiece> pieces;
  SegmentationType type = SegmentationType::Unigram;
  bool treat_whitespace_as_suffix = false;
  std::string bos_piece = "<s>";  ///< name of the piece at the start of a text; the piece may not exist
  std::string charsmap;           ///< table of characters to replace; empty = none
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
};

/// Parses a serialized ModelProto. Throws BadInput, naming `source`, if it is not one.
SentencepieceModel parse_sentencepiece_model(std::string_view file, const std::string& source);

/// Returns `piece` with spaces instead of its marks.
std::string with_spaces(std::string_view piece);

/// Returns the byte that a piece such as "<0x0A>" represents; std::nullopt for other types of pieces.
std::optional<u8> byte_of(const SentencePiece& piece);

/// Returns true if Tokenizer encodes U+2581 as byte pieces, so that decoding restores it. The sentencepiece library
/// converts U+2581 to a space, as does Tokenizer if the model also normalizes other text.
bool keeps_space_marks(const SentencepieceModel& model);

/// Returns true if spaces precede all other characters in every piece that text can be encoded to. Words (see
/// end_of_word()) can then be segmented independently.
bool pieces_end_at_spaces(const SentencepieceModel& model);

/// Returns the size of the first word of `text`: spaces and the following text up to the next space.
inline std::size_t end_of_word(std::string_view text) {
  return std::min(text.find(' ', std::min(text.find_first_not_of(' '), text.size())), text.size());
}

/// Returns a copy of the serialized model `file` whose normalizer only replaces spaces with U+2581.
std::string without_normalization(std::string_view file, const std::string& source);

/// Rounds the scores of all pieces in `file` to multiples of 2^-10. Sums of scores are then exact in fp32 up to 16384,
/// which suffices for texts of some kilobytes. Segmentations with equal scores therefore tie in every program,
/// regardless of the order and precision in which it adds scores.
void round_scores(std::string& file, const std::string& source);

}  // namespace mcpp
