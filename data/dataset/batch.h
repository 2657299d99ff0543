// Batches of samples and a thread that prefetches them during training.
#pragma once
#include <deque>
#include <functional>
#include <future>
#include <optional>
#include <span>
#include <vector>

#include "base/stored_ref.h"
#include "base/thread_pool.h"
#include "data/config.h"
#include "data/dataset/dataset.h"
#include "data/dataset/index/indexed_dataset.h"

namespace mcpp {

struct Batch {
  i64 batch_size = 0, seq_length = 0;
  std::vector<i32> tokens;   ///< [batch_size, seq_length]
  std::vector<i32> labels;   ///< [batch_size, seq_length]: labels[b, s] follows tokens[b, s]; -1 = no loss
  std::vector<i64> samples;  ///< [batch_size] sample indices in the dataset
};

/// Reads the given samples into one batch. Throws BadInput if a sample index exceeds the dataset, or if a token id is
/// outside [0, vocab_size); the message names dataset, document and offset.
Batch read_batch(const Dataset& dataset, std::span<const i64> samples, i64 vocab_size);

/// Throws BadInput, naming dataset, document and offset, if one of the sample's `tokens` is outside [0, vocab_size).
void check_token_ids(const Dataset& dataset, i64 sample, std::span<const i32> tokens, i64 vocab_size);

/// Tokens and labels of a batch `distance` positions ahead, [batch_size, seq_length]. Where the sample, or the document
/// of the position, has no such token, the token is 0 and the label is -1.
struct FutureBatch {
  std::vector<i32> tokens, labels;
};
/// Returns the tokens and labels `distance` positions ahead. `starts` is the result of document_starts() if documents
/// are separated, otherwise empty.
FutureBatch future_batch(const Batch& batch, i64 distance, std::span<const i32> starts);

/// Prefetches up to `depth` batches of a stream ahead of the consumer.
class Prefetcher {
 public:
  /// Returns the samples of the next batch; an empty vector ends the stream. Called in order from a single thread (the
  /// caller's if depth is 0).
  using NextSamples = std::function<std::vector<i64>()>;

  Prefetcher(StoredRef<Dataset> dataset, i64 vocab_size, NextSamples next_samples, i64 depth);

  /// Returns the next batch in order; after the last one, a batch with batch_size 0. Rethrows errors of the thread.
  Batch next();

 private:
  Batch read_next();
  void start_next_read();

  const Dataset& dataset_;
  i64 vocab_size_;
  NextSamples next_samples_;
  bool has_ended_ = false;
  std::deque<std::shared_future<Batch>> batches_;  // batches that are ready or being read, in order
  std::optional<ThreadPool> thread_;               // last member: uses all of the above; std::nullopt if depth is 0
};

// Document boundaries within samples, which are slices of one concatenation of all documents. Follows Megatron-LM's
// get_ltor_masks_and_position_ids.

/// Document handling that a model was trained with (data.reset_position_ids, data.reset_attention_mask and
/// data.eod_mask_loss), for code that reads tokens outside of training.
struct DocumentRules {
  i64 eod = -1;                     ///< token that ends a document
  bool resets_attention = false;    ///< attention is limited to the document
  bool resets_positions = false;    ///< positions count from the start of the document
  bool skips_first_tokens = false;  ///< the first token of a document is excluded from the loss

  bool has_starts() const { return resets_attention || resets_positions; }
};

/// Returns the rules of a resolved configuration. Throws BadInput if a key is set but data.eod_token is not.
DocumentRules document_rules(const DataConfig& data);

/// Returns the fraction of documents, of up to 10,000 spread over the dataset, that end with token `eod`. Throws
/// BadInput if no document ends with `eod` and the first million tokens do not contain it, because document rules would
/// have no effect.
double check_ends_documents(const IndexedDataset& dataset, i64 eod);

/// Returns, for each token, the position in its sample at which its document starts. Same shape as batch.tokens. A
/// document ends with the token `eod`; a document that started in an earlier sample starts at 0.
std::vector<i32> document_starts(const Batch& batch, i64 eod);

/// Sets the labels at `eod` positions, which belong to the next document, to -1 to exclude them from the loss.
void mask_labels_at_eod(Batch& batch, i64 eod);

}  // namespace mcpp
