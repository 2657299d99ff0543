// Samples gathered to a batch, and a thread that reads the next ones while this one is trained on.
#pragma once
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "base/kept_ref.h"
#include "data/read/dataset.h"

namespace mcpp {

struct Batch {
  i64 batch_size = 0, seq_length = 0;
  std::vector<i32> tokens;   ///< [batch_size, seq_length]
  std::vector<i32> labels;   ///< [batch_size, seq_length]: labels[b, s] follows tokens[b, s]
  std::vector<i64> samples;  ///< [batch_size] numbers in the dataset
};

/// BadInput when a sample lies beyond the dataset's end, or when a token id is outside [0, vocab_size): the message
/// names dataset, document and offset.
Batch read_batch(const Dataset& dataset, std::span<const i64> samples, i64 vocab_size);

/// Reads a stream of batches, `depth` of them ahead of the consumer. Dataset must outlive it.
class Prefetcher {
 public:
  /// The samples of the next batch; empty = no more. Called in order, by one thread (the caller's when depth is 0).
  using NextSamples = std::function<std::vector<i64>()>;

  Prefetcher(KeptRef<Dataset> dataset, i64 vocab_size, NextSamples next_samples, i64 depth);
  ~Prefetcher();  ///< stops the thread; batches read ahead are dropped
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  /// The next batch, in order; one with batch_size 0 after the last. What went wrong in the thread is thrown here.
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
  std::thread thread_;  // last: starts when everything above exists
};

}  // namespace mcpp
