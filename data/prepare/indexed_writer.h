// Writes a .bin/.idx pair (see data/read/indexed_dataset.h), byte for byte as Megatron-LM's IndexedDatasetBuilder does.
#pragma once
#include <optional>
#include <span>
#include <vector>

#include "base/file.h"
#include "data/read/indexed_dataset.h"

namespace mcpp {

/// Tokens stream to disk as they come; memory grows by 8 bytes per document, never with the number of tokens. Nothing
/// is visible under the prefix before finish(), and nothing is left behind when it is never reached.
class IndexedDatasetWriter {
 public:
  /// Ids must lie in [0, vocab_size), which also chooses uint16 or int32.
  IndexedDatasetWriter(const Path& prefix, i64 vocab_size);

  void add_tokens(std::span<const i32> tokens);  ///< appended to the open sequence
  void end_sequence();                           ///< a sequence may be empty
  void end_document();                           ///< a document is the sequences since the last; none is allowed
  /// One document that is one sequence: what preprocess writes.
  void add_document(std::span<const i32> tokens) { add_tokens(tokens), end_sequence(), end_document(); }
  void finish();

  i64 num_documents() const { return static_cast<i64>(sequences_in_document_.size()); }
  i64 num_sequences() const { return static_cast<i64>(lengths_.size()); }
  i64 num_tokens() const { return tokens_; }
  i64 open_tokens() const { return open_tokens_; }  ///< of the sequence not ended yet

 private:
  void write_index(AtomicFile& file) const;
  void flush();

  Path prefix_;
  i64 vocab_size_;
  TokenType type_;
  std::optional<AtomicFile> bin_;
  std::vector<std::byte> buffer_;
  std::vector<i32> lengths_, sequences_in_document_;
  i64 tokens_ = 0, open_tokens_ = 0;
  i32 open_sequences_ = 0;
};

}  // namespace mcpp
