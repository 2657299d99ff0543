#include "data/prepare/document_output.h"

#include <utility>

namespace mcpp {

TokenisedPiece tokenise(InputFiles::Piece raw, const DocumentFormat& format, const Tokenizer& tokenizer) {
  PieceDocuments documents = parse_piece(raw.path, std::move(raw.piece), format);
  TokenisedPiece result;
  result.malformed = documents.malformed;
  result.progress = raw.progress;
  for (const auto& segments : documents.by_key) {
    auto& out = result.by_key.emplace_back();
    for (const Segment& segment : segments) {
      out.push_back({tokenizer.encode(segment.text), static_cast<i64>(segment.text.size()), count_words(segment.text),
                     segment.ends_document});
    }
  }
  return result;
}

DocumentOutput::DocumentOutput(const std::string& prefix, const DocumentRules& rules, const Tokenizer& tokenizer,
                               bool continues)
    : prefix_(prefix), rules_(rules), writer_(prefix, tokenizer.vocab_size()), is_head_(continues) {
  info_.tokenizer_checksum = tokenizer.checksum();
  info_.vocab_size = tokenizer.vocab_size();
  info_.eod = tokenizer.eod();
  info_.append_eod = rules.append_eod;
}

void DocumentOutput::add(const TokenSegment& segment) {
  writer_.add_tokens(segment.tokens);
  info_.source_bytes += segment.bytes;
  info_.source_words += segment.words;
  is_open_ = true;
  if (segment.ends_document) end_document();
}

void DocumentOutput::end_document() {
  is_open_ = false;
  if (std::exchange(is_head_, false)) {  // whether it is empty, and its <eod>, is decided where all of it is known
    writer_.end_sequence();
    return writer_.end_document();
  }
  if (writer_.open_tokens() == 0) {  // nothing to end; Megatron-LM notes such a document, but gives it no <eod>
    ++empty_documents_;
    if (rules_.keep_empty) writer_.end_document();
    return;
  }
  if (rules_.append_eod) writer_.add_tokens(std::vector{static_cast<i32>(info_.eod)});
  writer_.end_sequence();
  writer_.end_document();
}

bool DocumentOutput::end_open_document() {
  if (!is_open_) return false;
  writer_.end_sequence();
  writer_.end_document();
  is_open_ = false;
  return true;
}

DatasetInfo DocumentOutput::finish_tokens() {
  info_.documents = writer_.num_documents();
  info_.tokens = writer_.num_tokens();
  writer_.finish();
  return info_;
}

DatasetInfo DocumentOutput::finish() {
  finish_tokens();
  write_dataset_info(prefix_, info_);
  return info_;
}

void DocumentOutput::remove() const {
  std::error_code ignored;
  for (const Path& path : {idx_path(prefix_), bin_path(prefix_), info_path(prefix_)}) {
    std::filesystem::remove(path, ignored);
  }
}

}  // namespace mcpp
