// Conversion of text pieces to the documents of a dataset.
#pragma once
#include <string>
#include <vector>

#include "data/dataset/dataset_info.h"
#include "data/preprocess/indexed_writer.h"
#include "data/preprocess/input_files.h"
#include "data/tokenizer/tokenizer.h"

namespace mcpp {

/// Size of the pieces in which long documents are tokenized, cut after a line if possible. Part of the output format.
/// Text that a model inserts before every document, such as Llama's space, precedes only the first piece.
inline constexpr std::size_t kTokenizedPieceBytes = std::size_t{1} << 19;

/// Tokenized Segment.
struct TokenSegment {
  std::vector<i32> tokens;
  i64 bytes = 0, words = 0;
  bool ends_document = true;
};

struct TokenizedPiece {
  std::vector<std::vector<TokenSegment>> by_key;
  i64 malformed = 0;
  u64 progress = 0;  ///< see InputFiles::Piece::progress
};

TokenizedPiece tokenize(InputFiles::Piece raw, const DocumentFormat& format, const Tokenizer& tokenizer);

struct DocumentOutputRules {
  bool append_eod = true;
  bool keep_empty = false;
};

/// Writes the documents of one key to `sequences`.
class DocumentWriter {
 public:
  /// If `continues`, the text up to the first end of a document continues a document of the previous unit; it is
  /// written unchanged as a separate document.
  DocumentWriter(TokenSequenceEncoder& sequences, const DocumentOutputRules& rules, const Tokenizer& tokenizer,
                 bool continues = false);

  void add(const TokenSegment& segment);
  /// Ends the open document, if any, without <eod>. Returns true if there was one.
  bool end_open_document();

  DatasetInfo info() const;
  i64 empty_documents() const { return empty_documents_; }
  i64 tokens() const { return sequences_.num_tokens() + sequences_.open_tokens(); }
  i64 documents() const { return sequences_.num_documents(); }
  /// Returns true once the continued document has ended.
  bool has_head_ended() const { return !is_head_; }

 private:
  void end_document();

  TokenSequenceEncoder& sequences_;
  DocumentOutputRules rules_;
  DatasetInfo info_;
  i64 empty_documents_ = 0;
  bool is_head_, is_open_ = false;
};

}  // namespace mcpp
