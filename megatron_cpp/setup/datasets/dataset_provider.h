// From the configuration to microbatches on the device.
#pragma once
#include <limits>
#include <memory>
#include <vector>

#include "data/read/batch.h"
#include "data/read/datasets.h"
#include "data/read/sampler.h"
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/setup/initialize.h"
#include "megatron_cpp/step/training_state.h"

namespace mcpp {

/// Returns the datasets of a run: the training split with `train_samples` samples, the others with as many as an
/// evaluation reads. Throws BadInput if the data cannot provide them. Collective over `ranks`.
Datasets dataset_provider(const Config& config, i64 train_samples, const IndexRanks& ranks, const Log& log);

/// Walks over the microbatches of one data-parallel rank: the sample numbers of each.
class MicroBatchWalk {
 public:
  MicroBatchWalk(std::vector<BatchSizeStep> batch_sizes, SamplerLayout layout, i64 consumed_samples)
      : batch_sizes_(std::move(batch_sizes)), layout_(layout), consumed_(consumed_samples) {}

  std::vector<i64> operator()();
  /// In the global batch that comes next; asked between two of them.
  i64 microbatches() const { return num_micro_batches(batch_size_at(batch_sizes_, consumed_), layout_); }

 private:
  std::vector<BatchSizeStep> batch_sizes_;
  SamplerLayout layout_;
  i64 consumed_;
  i64 micro_batch_ = 0;
};

/// The global batches of one dataset, in order from `consumed_samples` on: this rank's microbatches of each. Reads
/// ahead in a thread. Of those that share the layers of the first and the last pipeline stage (tp x cp) only the first
/// rank reads; it broadcasts to the others, and each keeps its positions. The stages between need only the sample
/// numbers; unless documents are told apart, where they read as well, to know where these begin.
class BatchStream {
 public:
  /// `batch_sizes` as Config::batch_sizes(). The dataset must outlive the stream. Samples from `end` on only fill up a
  /// batch: they have no targets.
  BatchStream(const Dataset& dataset, const Config& config, std::vector<BatchSizeStep> batch_sizes,
              i64 consumed_samples, Session& session, i64 end = std::numeric_limits<i64>::max());

  std::vector<MicroBatch> next();

 private:
  MicroBatch next_micro_batch();

  /// This rank reads the next microbatch, which has these samples.
  Batch read(const std::vector<i64>& samples);

  DataConfig data_;
  i64 micro_batch_size_;
  ModelConfig model_;
  CpCommType cp_comm_type_;
  Session& session_;
  MicroBatchWalk walk_;
  bool needs_tokens_;
  i64 end_;
  std::unique_ptr<Prefetcher> prefetcher_;  // where this rank reads
};

}  // namespace mcpp
