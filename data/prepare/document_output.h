// From pieces of text to the documents of a dataset.
#pragma once
#include <string>
#include <vector>

#include "data/prepare/indexed_writer.h"
#include "data/prepare/input_files.h"
#include "data/read/dataset_info.h"
#include "data/tokenizer/tokenizer.h"

namespace mcpp {

/// Part of the result: longer documents are tokenised in pieces of about this size, cut after a line where there is
/// one. What a model puts before every text, such as Llama's space, is put before the first piece alone.
inline constexpr std::size_t kTokenisedPieceBytes = std::size_t{1} << 19;

/// Segment, in tokens.
struct TokenSegment {
  std::vector<i32> tokens;
  i64 bytes = 0, words = 0;
  bool ends_document = true;
};

struct TokenisedPiece {
  std::vector<std::vector<TokenSegment>> by_key;
  i64 malformed = 0;
  u64 progress = 0;  ///< as of the piece
};

TokenisedPiece tokenise(InputFiles::Piece raw, const DocumentFormat& format, const Tokenizer& tokenizer);

struct DocumentOutputRules {
  bool append_eod = true;
  bool keep_empty = false;
};

/// The documents of one key on their way to `sequences`.
class DocumentOutput {
 public:
  /// `continues`: what comes up to the first end of a document belongs to one that began elsewhere. It becomes a
  /// document of its own here, as it is.
  DocumentOutput(TokenSequences& sequences, const DocumentOutputRules& rules, const Tokenizer& tokenizer,
                 bool continues = false);

  void add(const TokenSegment& segment);
  /// What is open becomes a document, as it is; whether anything was.
  bool end_open_document();

  DatasetInfo info() const;
  i64 empty_documents() const { return empty_documents_; }
  i64 tokens() const { return sequences_.num_tokens() + sequences_.open_tokens(); }
  i64 documents() const { return sequences_.num_documents(); }
  /// Whether what belongs to a document that began elsewhere ended here.
  bool head_ended() const { return !is_head_; }

 private:
  void end_document();

  TokenSequences& sequences_;
  DocumentOutputRules rules_;
  DatasetInfo info_;
  i64 empty_documents_ = 0;
  bool is_head_, is_open_ = false;
};

}  // namespace mcpp
