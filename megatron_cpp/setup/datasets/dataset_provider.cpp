#include "megatron_cpp/setup/datasets/dataset_provider.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <thread>

#include "comm/object_collectives.h"
#include "data/dataset/batch.h"
#include "data/dataset/mock_dataset.h"
#include "megatron_cpp/config/layout.h"
#include "tensor/transfer.h"

namespace mcpp {
namespace {

/// Interval at which a building rank wakes up the others.
constexpr std::chrono::milliseconds kExchangeInterval{200};

struct RankFlags {
  bool is_busy = false, has_signal = false;
};

/// Returns, for each flag, whether it is set on any rank of the group.
RankFlags reduce_flags(RankFlags local, Communicator& group) {
  CpuDevice host;
  Tensor both = Tensor::empty({2}, DType::F32, host, MemoryClass::Other);
  both.data<float>()[0] = local.is_busy ? 1 : 0;
  both.data<float>()[1] = local.has_signal ? 1 : 0;
  group.all_reduce(both, ReduceOp::Max).wait();
  return {both.data<float>()[0] != 0, both.data<float>()[1] != 0};
}

}  // namespace

bool SharedIndexRanks::runs_on_this_rank(RankScope scope) const {
  return scope == RankScope::All || (scope == RankScope::First ? world_.rank() : node_.rank()) == 0;
}

bool SharedIndexRanks::run(RankScope scope, const std::function<bool(const IndexBuildOptions&)>& f) const {
  const int copies = scope == RankScope::All ? node_.size() : 1;
  std::future<bool> result;
  std::jthread worker;  // declared last: on unwinding it stops f, so no rank waits for the rest of the build
  if (runs_on_this_rank(scope)) {
    std::packaged_task<bool(std::stop_token)> work([&](std::stop_token stop) { return f({copies, std::move(stop)}); });
    result = work.get_future();
    worker = std::jthread(std::move(work));
  }
  for (RankFlags news{.is_busy = true}; news.is_busy;) {
    const bool is_busy = result.valid() && result.wait_for(kExchangeInterval) != std::future_status::ready;
    news = reduce_flags({is_busy, signal_() != 0}, world_);
    if (news.has_signal) worker.request_stop();
  }
  bool local = false;
  run_on_all_ranks(world_, [&] {
    if (result.valid()) local = result.get();
    return std::string();
  });
  return broadcast_from_rank0(node_, [&] { return str(local); }) == str(true);
}

namespace {

/// Converts [b, s] on the host to [s, b] on the device.
Tensor sequence_first(const std::vector<i32>& values, i64 batch, i64 seq, Device& device) {
  std::vector<i32> ordered;
  ordered.reserve(values.size());
  for (i64 s = 0; s < seq; ++s) {
    for (i64 b = 0; b < batch; ++b) ordered.push_back(values[static_cast<std::size_t>(b * seq + s)]);
  }
  return integers(ordered, {seq, batch}, device);
}

/// Creates mock datasets with the given numbers of samples; null where the number is 0.
Datasets mock_datasets(const Config& config, std::array<i64, 3> num_samples, const Log& log) {
  const i64 vocab_size = config.model.vocab_size, eod = config.data.eod_token;
  check_input(vocab_size > 1, "data.mock_data: needs a model.vocab_size of 2 or more");
  check_input(eod < vocab_size, "data.eod_token: ", eod, " is outside the vocabulary of ", vocab_size);
  const auto make = [&](std::size_t split) -> std::unique_ptr<Dataset> {
    if (num_samples[split] <= 0) return nullptr;
    const MockText text{
        .seed = config.training.seed, .split_name = kSplitNames[split], .vocab_size = vocab_size, .eod = eod};
    return std::make_unique<MockDataset>(text, num_samples[split], config.model.seq_length);
  };
  log.info("data: random tokens (data.mock_data); losses are meaningless");
  Datasets datasets{.sources = {}, .train = make(0), .test = make(2), .validation = {}};
  if (auto valid = make(1)) datasets.validation.push_back({"", std::move(valid)});
  return datasets;
}

}  // namespace

Datasets dataset_provider(const Config& config, i64 train_samples, const IndexRanks& ranks, const Log& log) {
  const TrainingConfig& training = config.training;
  const i64 eval_samples = config.evaluation_samples();  // the same samples at every evaluation
  if (config.data.mock_data) return mock_datasets(config, {train_samples, eval_samples, eval_samples}, log);
  Datasets datasets = build_train_valid_test_datasets(config.data, config.model.seq_length, training.seed,
                                                      {train_samples, eval_samples, eval_samples}, log, ranks);
  if (training.eval_iters > 0 && !datasets.valid()) {
    log.info(
        "data: no text is held out for validation (data.split, data.valid_data_path): no evaluation runs during "
        "training");
  }
  return datasets;
}

std::vector<i64> MicroBatchIterator::operator()() {
  const i64 global_batch_size = batch_size_at(batch_sizes_, consumed_);
  std::vector<i64> samples = micro_batch_samples(consumed_, micro_batch_, layout_);
  if (++micro_batch_ == num_micro_batches(global_batch_size, layout_)) {
    micro_batch_ = 0;
    consumed_ += global_batch_size;
  }
  return samples;
}

BatchStream::BatchStream(const Dataset& dataset, const Config& config, std::vector<BatchSizeStep> batch_sizes,
                         i64 consumed_samples, Session& session, i64 end)
    : data_(config.data),
      micro_batch_size_(config.training.micro_batch_size),
      model_(config.model),
      session_(session),
      microbatches_(std::move(batch_sizes),
                    {micro_batch_size_, session.parallel.dp->size(), session.parallel.dp->rank()}, consumed_samples),
      needs_tokens_(session.parallel.coordinates.pp == 0 ||
                    session.parallel.coordinates.pp == session.parallel.output_rank ||
                    config.data.has_document_starts()),
      end_(end) {
  if (!needs_tokens_ || session.parallel.tp_cp->rank() != 0) return;
  const auto samples_to_read = [iterator = microbatches_, end]() mutable {
    std::vector<i64> samples = iterator();
    for (i64& sample : samples) sample = std::min(sample, end - 1);  // repeat the last sample past the end
    return samples;
  };
  prefetcher_ =
      std::make_unique<Prefetcher>(dataset, config.model.vocab_size, samples_to_read, config.data.prefetch_batches);
}

Batch BatchStream::read(const std::vector<i64>& samples) {
  Batch batch = prefetcher_->next();
  for (std::size_t i = 0; i < batch.labels.size(); ++i) {
    if (samples[i / static_cast<std::size_t>(batch.seq_length)] >= end_) batch.labels[i] = -1;
  }
  if (data_.eod_mask_loss) mask_labels_at_eod(batch, data_.eod_token);
  return batch;
}

MicroBatch BatchStream::next_micro_batch() {
  MicroBatch whole;
  whole.samples = microbatches_();
  const auto shard = [&] { return shard_microbatch(whole, model_, session_.parallel.context_parallel()); };
  if (!needs_tokens_) return shard();
  const Batch batch = prefetcher_ ? read(whole.samples) : Batch();
  // Broadcast from the rank of the group that read the data.
  const auto shared = [&](const std::vector<i32>& values) {
    Tensor t = prefetcher_ ? sequence_first(values, micro_batch_size_, model_.seq_length, *session_.device)
                           : Tensor::empty({model_.seq_length, micro_batch_size_}, DType::I32, *session_.device);
    session_.parallel.tp_cp->broadcast(t, 0).wait();
    return t;
  };
  whole.tokens = shared(batch.tokens);
  whole.targets = shared(batch.labels);
  if (data_.has_document_starts()) {
    const Tensor starts = shared(document_starts(batch, data_.eod_token));
    if (data_.reset_attention_mask) whole.attention_starts = starts;
    if (data_.reset_position_ids) whole.position_starts = starts;
  }
  return shard();
}

std::vector<MicroBatch> BatchStream::next() {
  std::vector<MicroBatch> batches(static_cast<std::size_t>(microbatches_.microbatches()));
  for (MicroBatch& batch : batches) batch = next_micro_batch();
  return batches;
}

}  // namespace mcpp
