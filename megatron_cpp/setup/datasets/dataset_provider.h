// Datasets and microbatches of a run, as specified by the configuration.
#pragma once
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "base/log.h"
#include "comm/communicator.h"
#include "data/dataset/batch.h"
#include "data/dataset/datasets.h"
#include "data/dataset/index/index_cache.h"
#include "data/dataset/sampler.h"
#include "data/tokenizer/tokenizer.h"
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/setup/initialize.h"
#include "megatron_cpp/step/training_state.h"

namespace mcpp {

// Construction of the sample indices of a run by all ranks together.

/// Ranks of a run. Ranks that wait for a build exchange a message with the builder several times a second and sleep in
/// between, so that a long build does not trigger the watchdog and a signal on any rank is noticed. On a signal the
/// build is canceled and Preempted is thrown on all ranks.
class SharedIndexRanks final : public IndexRanks {
 public:
  /// `node` is the group of ranks on this node. `signal` returns the signal that asks this rank to stop, or 0.
  SharedIndexRanks(
      Communicator& world, Communicator& node, std::function<int()> signal = [] { return 0; })
      : world_(world), node_(node), signal_(std::move(signal)) {}

  bool run(RankScope scope, const std::function<bool(const IndexBuildOptions&)>& f) const override;

 private:
  bool runs_on_this_rank(RankScope scope) const;

  Communicator& world_;
  Communicator& node_;
  std::function<int()> signal_;
};

/// Returns the datasets of a run or stage: the training split has `train_samples` samples, and each other split has as
/// many samples as an evaluation reads. Throws BadInput if the data cannot provide them. Collective over `ranks`.
Datasets dataset_provider(const Config& config, i64 train_samples, const IndexRanks& ranks, const Log& log);

/// Iterates over the microbatches of one data-parallel rank; yields the sample indices of each.
class MicroBatchIterator {
 public:
  MicroBatchIterator(std::vector<BatchSizeStep> batch_sizes, SamplerLayout layout, i64 consumed_samples)
      : batch_sizes_(std::move(batch_sizes)), layout_(layout), consumed_(consumed_samples) {}

  std::vector<i64> operator()();
  /// Returns the number of microbatches in the next global batch. Call it only between two global batches.
  i64 microbatches() const { return num_micro_batches(batch_size_at(batch_sizes_, consumed_), layout_); }

 private:
  std::vector<BatchSizeStep> batch_sizes_;
  SamplerLayout layout_;
  i64 consumed_;
  i64 micro_batch_ = 0;
};

/// Numbers of the samples of a dataset within a run. Dropout depends on them.
struct SampleNumbers {
  i64 first = 0;                              ///< number of the dataset's first sample
  i64 end = std::numeric_limits<i64>::max();  ///< samples from this number on only pad a batch and have no targets
};

/// Streams this rank's microbatches of the global batches of one dataset, in order from `consumed_samples` on.
/// Prefetches on a thread. Among the tp x cp ranks that share the first or the last pipeline stage, only the first rank
/// reads the data and broadcasts it; each rank then keeps its own positions. Intermediate stages need only the sample
/// indices, except that they also read the data if document boundaries are used.
class BatchStream {
 public:
  /// `batch_sizes` is as in Config::batch_sizes().
  BatchStream(const Dataset& dataset, const Config& config, std::vector<BatchSizeStep> batch_sizes,
              i64 consumed_samples, Session& session, SampleNumbers numbers = {});

  std::vector<MicroBatch> next();

 private:
  MicroBatch next_micro_batch();

  /// Reads `samples`, the next microbatch of this rank.
  Batch read(const std::vector<i64>& samples);

  DataConfig data_;
  i64 micro_batch_size_;
  ModelConfig model_;
  Session& session_;
  MicroBatchIterator microbatches_;
  bool needs_tokens_;
  SampleNumbers numbers_;
  std::unique_ptr<Prefetcher> prefetcher_;  // null if this rank does not read
};

// Consistency of tokenizer, model vocabulary and datasets.

/// Fills in model.vocab_size from data.tokenizer_model if it is unset, and data.eod_token if it is needed. Throws
/// BadInput if both are set and inconsistent, if neither is set, or if a dataset was made with a different
/// tokenizer.
void resolve_vocabulary(Config& config, const Log& log);

/// Opens the tokenizer of a trained model. Throws BadInput if its checksum is not `trained_with` ("" = unknown), or if
/// it has more pieces than the model's vocabulary.
Tokenizer open_tokenizer(const Path& path, const std::string& trained_with, const ModelConfig& model);

/// Tokenizer that produced the token ids of a run, identified by the checksum of its file.
struct TokenizerSource {
  /// File that states the checksum: data.tokenizer_model, or the .json file of the first dataset that has one.
  std::string file;
  std::string checksum;
};
/// Returns the tokenizer of a run; empty if unknown. Throws BadInput if data.tokenizer_model cannot be read.
TokenizerSource tokenizer_source(const DataConfig& data);

/// Opens every dataset as training would and logs the number of samples in each split. Does nothing without datasets.
void check_data(const Config& config, const World& world, const Log& log);

}  // namespace mcpp
