#include "data/preprocess/document_writer.h"

#include <utility>

namespace mcpp {

TokenizedPiece tokenize(InputFiles::Piece raw, const DocumentFormat& format, const Tokenizer& tokenizer) {
  PieceDocuments documents = parse_piece(raw.path, std::move(raw.piece), format);
  TokenizedPiece result;
  result.malformed = documents.malformed;
  result.progress = raw.progress;
  for (const auto& segments : documents.by_key) {
    auto& out = result.by_key.emplace_back();
    for (const Segment& segment : segments) {
      const TextPart part{segment.begins_document, segment.ends_document, segment.text_before};
      out.push_back({tokenizer.encode(segment.text, part), static_cast<i64>(segment.text.size()),
                     count_words(segment.text), segment.ends_document});
    }
  }
  return result;
}

DocumentWriter::DocumentWriter(TokenSequenceEncoder& sequences, const DocumentOutputRules& rules,
                               const Tokenizer& tokenizer, bool continues)
    : sequences_(sequences), rules_(rules), is_head_(continues) {
  info_.tokenizer_checksum = tokenizer.checksum();
  info_.vocab_size = tokenizer.vocab_size();
  info_.eod = tokenizer.eod();
  info_.append_eod = rules.append_eod;
}

void DocumentWriter::add(const TokenSegment& segment) {
  sequences_.add_tokens(segment.tokens);
  info_.source_bytes += segment.bytes;
  info_.source_words += segment.words;
  is_open_ = true;
  if (segment.ends_document) end_document();
}

void DocumentWriter::end_document() {
  is_open_ = false;
  // whether it is empty, and its <eod>, are decided by the assembler, which knows all of it
  if (std::exchange(is_head_, false)) {
    sequences_.end_sequence();
    return sequences_.end_document();
  }
  if (sequences_.open_tokens() == 0) {  // Megatron-LM records an empty document without <eod>
    ++empty_documents_;
    if (rules_.keep_empty) sequences_.end_document();
    return;
  }
  if (rules_.append_eod) sequences_.add_tokens(std::vector{static_cast<i32>(info_.eod)});
  sequences_.end_sequence();
  sequences_.end_document();
}

bool DocumentWriter::end_open_document() {
  if (!is_open_) return false;
  sequences_.end_sequence();
  sequences_.end_document();
  is_open_ = false;
  return true;
}

DatasetInfo DocumentWriter::info() const {
  DatasetInfo info = info_;
  info.documents = documents();
  info.tokens = tokens();
  return info;
}

}  // namespace mcpp
