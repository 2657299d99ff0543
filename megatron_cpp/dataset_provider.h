// From the configuration to microbatches on the device.
#pragma once
#include <memory>
#include <vector>

#include "data/batch.h"
#include "data/datasets.h"
#include "megatron_cpp/config.h"
#include "megatron_cpp/initialize.h"
#include "megatron_cpp/training_state.h"

namespace mcpp {

/// The datasets of a run, each with as many samples as the run will read. BadInput when they cannot be.
Datasets dataset_provider(const Config& config, const Log& log);

/// The global batches of one dataset, in order from `consumed_samples` on: this rank's microbatches of each. Reads
/// ahead in a thread. Only tensor-parallel rank 0 reads; it broadcasts to the ranks that share its layers.
class BatchStream {
 public:
  /// `batch_sizes` as Config::batch_sizes(). The dataset must outlive the stream.
  BatchStream(const Dataset& dataset, const Config& config, std::vector<BatchSizeStep> batch_sizes,
              i64 consumed_samples, Session& session);

  std::vector<MicroBatch> next();

 private:
  i64 microbatches_per_step() const;
  MicroBatch next_micro_batch();

  std::vector<BatchSizeStep> batch_sizes_;
  i64 micro_batch_size_, seq_length_;
  i64 consumed_samples_;
  Session& session_;
  std::unique_ptr<Prefetcher> prefetcher_;  // on tensor-parallel rank 0
};

}  // namespace mcpp
