#include "data/tokenizer/sentencepiece_model.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "data/tokenizer/proto_reader.h"

namespace mcpp {
namespace {

// Field numbers of sentencepiece_model.proto.
enum ModelField : u64 { kPieces = 1, kTrainerSpec = 2, kNormalizerSpec = 3, kSelfTestData = 4, kDenormalizerSpec = 5 };
enum PieceField : u64 { kPiece = 1, kScore = 2, kType = 3 };
enum TrainerField : u64 { kModelType = 3, kTreatWhitespaceAsSuffix = 24, kBosPiece = 46 };
enum NormalizerField : u64 {
  kPrecompiledCharsmap = 2,
  kAddDummyPrefix = 3,
  kRemoveExtraWhitespaces = 4,
  kEscapeWhitespaces = 5
};

/// Converts to an enumeration with the values 1 .. last.
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

std::optional<u8> byte_of(const SentencePiece& piece) {
  constexpr std::string_view kBegin = "<0x";
  if (piece.type != PieceType::Byte || !piece.text.starts_with(kBegin)) return std::nullopt;
  u8 byte = 0;
  std::from_chars(piece.text.data() + kBegin.size(), piece.text.data() + piece.text.size(), byte, 16);
  return byte;
}

bool keeps_space_marks(const SentencepieceModel& model) {
  return !model.add_dummy_prefix && !model.remove_extra_whitespaces && model.charsmap.empty() &&
         std::ranges::any_of(model.pieces, [](const SentencePiece& piece) { return piece.type == PieceType::Byte; });
}

bool pieces_end_at_spaces(const SentencepieceModel& model) {
  return std::ranges::none_of(model.pieces, [](const SentencePiece& piece) {
    if (piece.type != PieceType::Normal && piece.type != PieceType::UserDefined) return false;
    const std::string text = with_spaces(piece.text);
    return end_of_word(text) < text.size();
  });
}

std::string without_normalization(std::string_view file, const std::string& source) {
  std::string model;
  ProtoReader reader(file, source);
  std::string_view rest = file;
  for (ProtoField field; reader.next(field); rest = reader.rest()) {
    const bool is_removed =
        field.number == kNormalizerSpec || field.number == kSelfTestData || field.number == kDenormalizerSpec;
    if (!is_removed) model.append(rest.substr(0, rest.size() - reader.rest().size()));
  }
  constexpr char kVarint = 0, kBytes = 2;
  const auto tag = [](u64 field, char type) { return static_cast<char>(field << 3 | static_cast<u64>(type)); };
  const std::string spec{tag(kAddDummyPrefix, kVarint),    0, tag(kRemoveExtraWhitespaces, kVarint), 0,
                         tag(kEscapeWhitespaces, kVarint), 1};
  return model + tag(kNormalizerSpec, kBytes) + static_cast<char>(spec.size()) + spec;
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
