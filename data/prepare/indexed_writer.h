// Writes a .bin/.idx pair (see data/read/index/indexed_dataset.h), byte for byte as Megatron-LM's IndexedDatasetBuilder
// does.
#pragma once
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "data/read/index/indexed_dataset.h"

namespace mcpp {

/// What an .idx file says.
struct IndexContent {
  TokenType type{};
  std::vector<i32> lengths;                ///< tokens of each sequence
  std::vector<i32> sequences_in_document;  ///< their sum is the number of sequences
};

/// Gives a dataset its files. `name_bin` gives the .bin its name, of which the content is on the disk already. Killed
/// at any time, it leaves the old dataset, none, or the new one: never files that do not belong together.
void publish_dataset(const Path& prefix, const IndexContent& index, const std::function<void()>& name_bin);

/// Sequences of tokens as a .bin has them, of which the bytes go elsewhere as they come; memory grows by 8 bytes per
/// document, never with the number of tokens.
class TokenSequences {
 public:
  using Sink = std::function<void(std::span<const std::byte>)>;

  /// Ids must lie in [0, vocab_size), which also chooses uint16 or int32. `name` is for messages.
  TokenSequences(std::string name, i64 vocab_size, Sink sink);

  void add_tokens(std::span<const i32> tokens);  ///< appended to the open sequence
  void end_sequence();                           ///< a sequence may be empty
  void end_document();                           ///< a document is the sequences since the last; none is allowed
  /// One document that is one sequence: what preprocess writes.
  void add_document(std::span<const i32> tokens) { add_tokens(tokens), end_sequence(), end_document(); }
  /// What has come is with the sink.
  void flush();

  const IndexContent& index() const { return index_; }
  i64 num_documents() const { return static_cast<i64>(index_.sequences_in_document.size()); }
  i64 num_sequences() const { return static_cast<i64>(index_.lengths.size()); }
  i64 num_tokens() const { return tokens_; }
  i64 open_tokens() const { return open_tokens_; }  ///< of the sequence not ended yet

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

/// Those of a dataset. Nothing is visible under the prefix before finish(), and nothing is left behind when it is never
/// reached.
class IndexedDatasetWriter : public TokenSequences {
 public:
  IndexedDatasetWriter(const Path& prefix, i64 vocab_size);
  IndexedDatasetWriter(const IndexedDatasetWriter&) = delete;
  IndexedDatasetWriter& operator=(const IndexedDatasetWriter&) = delete;

  void finish();

 private:
  Path prefix_;
  std::optional<AtomicFile> bin_;
};

}  // namespace mcpp
