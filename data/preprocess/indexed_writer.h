// Writer for .bin/.idx pairs (see data/dataset/index/indexed_dataset.h), byte-identical to Megatron-LM's
// IndexedDatasetBuilder.
#pragma once
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "data/dataset/dataset_info.h"
#include "data/dataset/index/indexed_dataset.h"
#include "data/preprocess/conversation.h"
#include "data/preprocess/input_files.h"
#include "data/tokenizer/tokenizer.h"

namespace mcpp {

/// Contents of an .idx file.
struct IndexContent {
  TokenType type{};
  std::vector<i32> lengths;                ///< tokens per sequence
  std::vector<i32> sequences_in_document;  ///< by document; the sum is lengths.size()
};

/// Publishes a dataset: writes the .idx and calls `commit_bin` to rename the already durable .bin. A crash at any time
/// leaves the old dataset, none, or the new one, but never a mismatched pair.
void publish_dataset(const Path& prefix, const IndexContent& index, const std::function<void()>& commit_bin);

/// Removes the .idx of an old dataset, so that it is not found while the files of a new one are published.
void retract_dataset(const Path& prefix);

/// Encodes sequences of tokens as in a .bin file and passes the bytes to `sink`. Memory grows by 8 bytes per document,
/// independent of the number of tokens.
class TokenSequenceEncoder {
 public:
  using Sink = std::function<void(std::span<const std::byte>)>;

  /// Token ids must be in [0, vocab_size); `vocab_size` selects uint16 or int32. `name` is used in messages.
  TokenSequenceEncoder(std::string name, i64 vocab_size, Sink sink);

  void add_tokens(std::span<const i32> tokens);  ///< appends to the open sequence
  void end_sequence();                           ///< ends the open sequence, which may be empty
  void end_document();  ///< groups the sequences since the last call, possibly none, into a document
  /// Adds a document of a single sequence.
  void add_document(std::span<const i32> tokens) { add_tokens(tokens), end_sequence(), end_document(); }
  /// Passes all buffered bytes to the sink.
  void flush();

  const IndexContent& index() const { return index_; }
  i64 num_documents() const { return static_cast<i64>(index_.sequences_in_document.size()); }
  i64 num_sequences() const { return static_cast<i64>(index_.lengths.size()); }
  i64 num_tokens() const { return tokens_; }
  i64 open_tokens() const { return open_tokens_; }  ///< tokens of the sequence that has not ended yet

 protected:
  bool is_in_document() const { return open_tokens_ > 0 || open_sequences_ > 0; }

 private:
  std::string name_;
  i64 vocab_size_;
  Sink sink_;
  IndexContent index_;
  std::vector<std::byte> buffer_;
  i64 tokens_ = 0, open_tokens_ = 0;
  i32 open_sequences_ = 0;
};

/// Writer of a dataset. Nothing is visible under the prefix before finish(); without finish(), nothing is left behind.
class IndexedDatasetWriter : public TokenSequenceEncoder {
 public:
  IndexedDatasetWriter(const Path& prefix, i64 vocab_size);
  IndexedDatasetWriter(const IndexedDatasetWriter&) = delete;
  IndexedDatasetWriter& operator=(const IndexedDatasetWriter&) = delete;

  void finish();

 private:
  Path prefix_;
  std::optional<AtomicFile> bin_;
};

// Conversion of text chunks to the documents of a dataset.

/// Size of the chunks in which long documents are tokenized, split after a line if possible. Part of the output format.
/// Text that a model inserts before every document, such as Llama's space, precedes only the first chunk.
inline constexpr std::size_t kTokenizedChunkBytes = std::size_t{1} << 19;

/// Tokenized Segment.
struct TokenSegment {
  std::vector<i32> tokens;
  i64 bytes = 0, words = 0;
  bool ends_document = true;
  i64 targets = 0;  ///< tokens with a loss, if the dataset has a loss mask
};

struct TokenizedChunk {
  std::vector<std::vector<TokenSegment>> by_key;
  i64 malformed = 0;
  u64 progress = 0;  ///< see InputFiles::Chunk::progress
};

/// Tokenizer of the chunks of a preprocessing run. Const methods are thread-safe.
class ChunkTokenizer {
 public:
  /// Throws BadInput like ConversationEncoder, if `conversation` is not about texts.
  ChunkTokenizer(DocumentFormat format, const ConversationFormat& conversation, StoredRef<Tokenizer> tokenizer);

  /// Returns the tokens of a text by key. For conversations, the keys are the loss mask and the tokens.
  TokenizedChunk tokenize(InputFiles::Chunk raw) const;
  /// Returns true if conversations contain the token that ends documents.
  bool ends_documents_early() const { return conversations_ && conversations_->ends_documents_early(); }

 private:
  TokenizedChunk tokenize_conversations(InputFiles::Chunk raw) const;

  DocumentFormat format_;
  const Tokenizer& tokenizer_;
  std::optional<ConversationEncoder> conversations_;
};

struct DocumentOutputRules {
  bool append_eod = true;
  bool keep_empty = false;
  bool has_eod = false;        ///< segments contain the token that ends documents, if append_eod
  bool has_loss_mask = false;  ///< the dataset has a loss mask, so that its metadata counts targets
  i64 vocab_size = 0;          ///< number of values if they are not tokens; 0 = from the tokenizer

  /// Returns the number of values that the dataset may contain.
  i64 vocab_size_with(const Tokenizer& tokenizer) const { return vocab_size > 0 ? vocab_size : tokenizer.vocab_size(); }
};

/// Writes the documents of one key to `sequences`.
class DocumentWriter {
 public:
  /// If `continues_document`, the text up to the first end of a document continues a document of the previous unit. It
  /// is written unchanged as a separate document.
  DocumentWriter(TokenSequenceEncoder& sequences, const DocumentOutputRules& rules, const Tokenizer& tokenizer,
                 bool continues_document = false);

  void add(const TokenSegment& segment);
  /// Ends the open document, if any, without <eod>. Returns true if a document was open.
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
