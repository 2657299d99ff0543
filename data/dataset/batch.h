// Batches of samples and a thread that prefetches them during training.
#pragma once
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "base/stored_ref.h"
#include "data/dataset/dataset.h"

namespace mcpp {

struct Batch {
  i64 batch_size = 0, seq_length = 0;
  std::vector<i32> tokens;   ///< [batch_size, seq_length]
  std::vector<i32> labels;   ///< [batch_size, seq_length]: labels[b, s] follows tokens[b, s]
  std::vector<i64> samples;  ///< [batch_size] sample indices in the dataset
};

/// Reads the given samples into one batch. Throws BadInput if a sample index exceeds the dataset, or if a token id is
/// outside [0, vocab_size); the message names dataset, document and offset.
Batch read_batch(const Dataset& dataset, std::span<const i64> samples, i64 vocab_size);

/// Prefetches up to `depth` batches of a stream ahead of the consumer.
class Prefetcher {
 public:
  /// Returns the samples of the next batch; an empty vector ends the stream. Called in order from a single thread (the
  /// caller's if depth is 0).
  using NextSamples = std::function<std::vector<i64>()>;

  Prefetcher(StoredRef<Dataset> dataset, i64 vocab_size, NextSamples next_samples, i64 depth);
  ~Prefetcher();  ///< stops the thread; discards prefetched batches
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  /// Returns the next batch in order; after the last one, a batch with batch_size 0. Rethrows errors of the thread.
  Batch next();

 private:
  Batch read_next() const;
  void run();

  const Dataset& dataset_;
  i64 vocab_size_;
  NextSamples next_samples_;
  std::size_t depth_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Batch> ready_;
  std::exception_ptr error_;
  bool stop_ = false;
  std::thread thread_;  // last member: starts after all others are constructed
};

}  // namespace mcpp
