#include "data/tokenizer/sentencepiece_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "data/tokenizer/proto_reader.h"

namespace mcpp {
namespace {

// Field numbers of sentencepiece_model.proto.
enum ModelField : u64 { kPieces = 1, kTrainerSpec = 2, kNormalizerSpec = 3 };
enum PieceField : u64 { kPiece = 1, kScore = 2, kType = 3 };
enum TrainerField : u64 { kModelType = 3, kTreatWhitespaceAsSuffix = 24, kBosPiece = 46 };
enum NormalizerField : u64 {
  kPrecompiledCharsmap = 2,
  kAddDummyPrefix = 3,
  kRemoveExtraWhitespaces = 4,
  kEscapeWhitespaces = 5
};

/// The value of an enumeration whose values are 1 .. last.
template <class Enum>
Enum enum_of(u64 value, Enum last, const std::string& source) {
  check_input(value >= 1 && value <= static_cast<u64>(last), "tokenizer model ", source, ": damaged");
  return static_cast<Enum>(value);
}

SentencePiece parse_piece(std::string_view message, const std::string& source) {
  SentencePiece piece;
  ProtoReader reader(message, source);
  for (ProtoField field; reader.next(field);) {
    if (field.number == kPiece) piece.text = field.bytes;
    if (field.number == kScore && field.bytes.size() == sizeof piece.score)
      std::memcpy(&piece.score, field.bytes.data(), sizeof piece.score);
    if (field.number == kType) piece.type = enum_of(field.integer, PieceType::Byte, source);
  }
  return piece;
}

void parse_trainer(std::string_view message, const std::string& source, SentencepieceModel& model) {
  ProtoReader reader(message, source);
  for (ProtoField field; reader.next(field);) {
    if (field.number == kModelType) model.type = enum_of(field.integer, SegmentationType::Char, source);
    if (field.number == kTreatWhitespaceAsSuffix) model.treat_whitespace_as_suffix = field.integer != 0;
    if (field.number == kBosPiece) model.bos_piece = field.bytes;
  }
}

void parse_normalizer(std::string_view message, const std::string& source, SentencepieceModel& model) {
  ProtoReader reader(message, source);
  for (ProtoField field; reader.next(field);) {
    if (field.number == kPrecompiledCharsmap) model.charsmap = field.bytes;
    if (field.number == kAddDummyPrefix) model.add_dummy_prefix = field.integer != 0;
    if (field.number == kRemoveExtraWhitespaces) model.remove_extra_whitespaces = field.integer != 0;
    if (field.number == kEscapeWhitespaces) model.escape_whitespaces = field.integer != 0;
  }
}

}  // namespace

SentencepieceModel parse_sentencepiece_model(std::string_view file, const std::string& source) {
  SentencepieceModel model;
  ProtoReader reader(file, source);
  for (ProtoField field; reader.next(field);) {
    if (field.number == kPieces) model.pieces.push_back(parse_piece(field.bytes, source));
    if (field.number == kTrainerSpec) parse_trainer(field.bytes, source, model);
    if (field.number == kNormalizerSpec) parse_normalizer(field.bytes, source, model);
  }
  return model;
}

std::string with_spaces(std::string_view piece) {
  std::string text;
  for (std::size_t at = 0; at < piece.size();) {
    const std::size_t next = std::min(piece.find(kSpaceMark, at), piece.size());
    text.append(piece.substr(at, next - at));
    if (next < piece.size()) text.push_back(' ');
    at = std::min(next + kSpaceMark.size(), piece.size());
  }
  return text;
}

void round_scores(std::string& file, const std::string& source) {
  ProtoReader reader(file, source);
  for (ProtoField field; reader.next(field);) {
    if (field.number != kPieces) continue;
    ProtoReader piece(field.bytes, source);
    for (ProtoField part; piece.next(part);) {
      float score = 0;
      if (part.number != kScore || part.bytes.size() != sizeof score) continue;
      std::memcpy(&score, part.bytes.data(), sizeof score);
      score = std::round(score * 1024) / 1024;
      std::memcpy(file.data() + (part.bytes.data() - file.data()), &score, sizeof score);
    }
  }
}

}  // namespace mcpp
