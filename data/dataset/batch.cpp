#include "data/dataset/batch.h"

#include <algorithm>

#include "base/check.h"

namespace mcpp {
namespace {

[[noreturn]] void fail_token(const Dataset& dataset, i64 sample, i64 position, i32 token, i64 vocab_size) {
  const SampleOrigin origin = dataset.origin(sample);
  i64 left = position;
  for (const SamplePart& part : origin.parts) {
    if (left < part.length) {
      fail(ExitCode::BadInput, "dataset ", origin.prefix, ", document ", part.document, " (sequence ", part.sequence,
           "), token ", part.offset + left, ": id ", token, " is outside the vocabulary 0 .. ", vocab_size - 1,
           "; the text was tokenized with a different tokenizer, or the file is damaged");
    }
    left -= part.length;
  }
  fail(ExitCode::Internal, "position ", position, " is outside sample ", sample);
}

}  // namespace

void check_token_ids(const Dataset& dataset, i64 sample, std::span<const i32> tokens, i64 vocab_size) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= vocab_size)
      fail_token(dataset, sample, static_cast<i64>(i), tokens[i], vocab_size);
  }
}

Batch read_batch(const Dataset& dataset, std::span<const i64> samples, i64 vocab_size) {
  const auto s = static_cast<std::size_t>(dataset.seq_length());
  Batch batch;
  batch.batch_size = static_cast<i64>(samples.size());
  batch.seq_length = dataset.seq_length();
  batch.samples.assign(samples.begin(), samples.end());
  batch.tokens.resize(samples.size() * s);
  batch.labels.resize(samples.size() * s);
  std::vector<i32> row(s + 1);
  std::vector<u8> targets(s + 1);
  for (std::size_t b = 0; b < samples.size(); ++b) {
    check_input(samples[b] < dataset.size(), "sample ", samples[b], " is beyond the end of the dataset of ",
                dataset.size(), " samples; train on fewer samples or add text");
    dataset.read(samples[b], row, targets);
    check_token_ids(dataset, samples[b], row, vocab_size);
    std::copy(row.begin(), row.end() - 1, batch.tokens.begin() + static_cast<std::ptrdiff_t>(b * s));
    for (std::size_t i = 0; i < s; ++i) batch.labels[b * s + i] = targets[i + 1] != 0 ? row[i + 1] : -1;
  }
  return batch;
}

Prefetcher::Prefetcher(StoredRef<Dataset> dataset, i64 vocab_size, NextSamples next_samples, i64 depth)
    : dataset_(dataset), vocab_size_(vocab_size), next_samples_(std::move(next_samples)) {
  if (depth <= 0) return;
  thread_.emplace(1);
  for (i64 i = 0; i < depth; ++i) start_next_read();
}

Batch Prefetcher::read_next() {
  Batch batch;
  if (!has_ended_) batch = read_batch(dataset_, next_samples_(), vocab_size_);
  has_ended_ = batch.batch_size == 0;  // no samples
  return batch;
}

void Prefetcher::start_next_read() {
  batches_.push_back(thread_->submit([this] { return read_next(); }));
}

Batch Prefetcher::next() {
  if (!thread_) return read_next();
  Batch batch = batches_.front().get();
  if (batch.batch_size == 0) return batch;  // stays first, like an error, for all later calls
  batches_.pop_front();
  start_next_read();
  return batch;
}

DocumentRules document_rules(const DataConfig& data) {
  const DocumentRules rules{.eod = data.eod_token,
                            .resets_attention = data.reset_attention_mask,
                            .resets_positions = data.reset_position_ids,
                            .skips_first_tokens = data.eod_mask_loss};
  check_input(rules.eod >= 0 || (!rules.has_starts() && !rules.skips_first_tokens),
              "data.eod_token: is not set, but data.reset_position_ids, data.reset_attention_mask and "
              "data.eod_mask_loss require it");
  return rules;
}

double check_ends_documents(const IndexedDataset& dataset, i64 eod) {
  constexpr i64 kMaxDocuments = 10'000, kMaxTokens = 1'000'000;
  const auto is_eod = [&](i64 sequence, i64 offset) {
    i32 token = 0;
    dataset.read(sequence, offset, std::span(&token, 1));
    return token == eod;
  };
  const i64 documents = dataset.num_documents(), step = std::max<i64>(1, documents / kMaxDocuments);
  i64 sampled = 0, ended = 0;
  for (i64 document = 0; document < documents; document += step) {
    const i64 end = dataset.document_begin(document + 1);
    if (end == dataset.document_begin(document) || dataset.length(end - 1) == 0) continue;
    ++sampled;
    ended += is_eod(end - 1, dataset.length(end - 1) - 1);
  }
  if (ended > 0) return static_cast<double>(ended) / static_cast<double>(sampled);
  i64 seen = 0;  // other programs may store several documents per sequence
  for (i64 sequence = 0; sequence < dataset.num_sequences() && seen < kMaxTokens; ++sequence) {
    std::vector<i32> tokens(static_cast<std::size_t>(std::min(dataset.length(sequence), kMaxTokens - seen)));
    dataset.read(sequence, 0, tokens);
    if (std::ranges::count(tokens, static_cast<i32>(eod)) > 0) return 0;
    seen += static_cast<i64>(tokens.size());
  }
  fail(
      ExitCode::BadInput, dataset.prefix().string(), ".bin: no document ends with data.eod_token = ", eod,
      ", so data.reset_position_ids, data.reset_attention_mask and data.eod_mask_loss would have no effect; preprocess "
      "the text again with --append_eod, set data.eod_token to the token that ends its documents, or remove these "
      "keys");
}

std::vector<i32> document_starts(const Batch& batch, i64 eod) {
  std::vector<i32> starts;
  starts.reserve(batch.tokens.size());
  i64 start = 0;
  for (std::size_t i = 0; i < batch.tokens.size(); ++i) {
    const i64 position = static_cast<i64>(i) % batch.seq_length;
    if (position == 0)
      start = 0;
    else if (batch.tokens[i - 1] == eod)
      start = position;
    starts.push_back(static_cast<i32>(start));
  }
  return starts;
}

FutureBatch future_batch(const Batch& batch, i64 distance, std::span<const i32> starts) {
  FutureBatch future;
  for (std::size_t i = 0; i < batch.tokens.size(); ++i) {
    const std::size_t future_index = i + static_cast<std::size_t>(distance);
    const bool is_valid = static_cast<i64>(i) % batch.seq_length + distance < batch.seq_length &&
                          (starts.empty() || starts[i] == starts[future_index]);
    future.tokens.push_back(is_valid ? batch.tokens[future_index] : 0);
    future.labels.push_back(is_valid ? batch.labels[future_index] : -1);
  }
  return future;
}

void mask_labels_at_eod(Batch& batch, i64 eod) {
  for (std::size_t i = 0; i < batch.tokens.size(); ++i) {
    if (batch.tokens[i] == eod) batch.labels[i] = -1;
  }
}

}  // namespace mcpp
