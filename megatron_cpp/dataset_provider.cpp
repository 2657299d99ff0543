#include "megatron_cpp/dataset_provider.h"

#include <algorithm>

#include "data/sampler.h"

namespace mcpp {
namespace {

/// Walks over the microbatches of one data-parallel rank: what the prefetching thread asks for, step after step.
class MicroBatchWalk {
 public:
  MicroBatchWalk(std::vector<BatchSizeStep> batch_sizes, SamplerLayout layout, i64 consumed)
      : batch_sizes_(std::move(batch_sizes)), layout_(layout), consumed_(consumed) {}

  std::vector<i64> operator()() {
    const i64 global_batch_size = batch_size_at(batch_sizes_, consumed_);
    std::vector<i64> samples = micro_batch_samples(consumed_, micro_batch_, layout_);
    if (++micro_batch_ == num_micro_batches(global_batch_size, layout_)) {
      micro_batch_ = 0;
      consumed_ += global_batch_size;
    }
    return samples;
  }

 private:
  std::vector<BatchSizeStep> batch_sizes_;
  SamplerLayout layout_;
  i64 consumed_;
  i64 micro_batch_ = 0;
};

/// [b, s] on the host to [s, b] on the device.
Tensor sequence_first(const std::vector<i32>& values, i64 batch, i64 seq, Device& device) {
  Tensor t = Tensor::empty({seq, batch}, DType::I32, device);
  i32* out = t.data<i32>();
  for (i64 s = 0; s < seq; ++s) {
    for (i64 b = 0; b < batch; ++b) out[s * batch + b] = values[static_cast<std::size_t>(b * seq + s)];
  }
  return t;
}

}  // namespace

Datasets dataset_provider(const Config& config, const Log& log) {
  const TrainingConfig& training = config.training;
  const i64 train = config.total_samples();
  const i64 largest = config.batch_sizes().back().batch_size;
  const i64 held_out = training.eval_iters * largest;  // the same samples at every evaluation
  Datasets datasets = build_train_valid_test_datasets(config.data, config.model.seq_length, training.seed,
                                                      {train, held_out, held_out}, log);
  if (training.eval_iters > 0 && !datasets.valid) {
    log.info(
        "data: no text is held out for validation (data.split, data.valid_data_path): nothing is evaluated while "
        "training");
  }
  return datasets;
}

BatchStream::BatchStream(const Dataset& dataset, const Config& config, std::vector<BatchSizeStep> batch_sizes,
                         i64 consumed_samples, Session& session)
    : batch_sizes_(std::move(batch_sizes)),
      micro_batch_size_(config.training.micro_batch_size),
      seq_length_(config.model.seq_length),
      consumed_samples_(consumed_samples),
      session_(session) {
  if (session.tp->rank() != 0) return;
  const SamplerLayout layout{micro_batch_size_, session.dp->size(), session.dp->rank()};
  prefetcher_ = std::make_unique<Prefetcher>(dataset, config.model.vocab_size,
                                             MicroBatchWalk(batch_sizes_, layout, consumed_samples),
                                             config.data.prefetch_batches);
}

i64 BatchStream::microbatches_per_step() const {
  return batch_size_at(batch_sizes_, consumed_samples_) / (micro_batch_size_ * session_.dp->size());
}

MicroBatch BatchStream::next_micro_batch() {
  Device& device = *session_.device;
  MicroBatch result;
  Tensor samples = Tensor::empty({micro_batch_size_}, DType::I64, device);
  if (prefetcher_) {
    const Batch batch = prefetcher_->next();
    result.tokens = sequence_first(batch.tokens, micro_batch_size_, seq_length_, device);
    result.targets = sequence_first(batch.labels, micro_batch_size_, seq_length_, device);
    std::copy(batch.samples.begin(), batch.samples.end(), samples.data<i64>());
  } else {
    result.tokens = Tensor::empty({seq_length_, micro_batch_size_}, DType::I32, device);
    result.targets = Tensor::like(result.tokens);
  }
  for (Tensor* t : {&result.tokens, &result.targets, &samples}) session_.tp->broadcast(*t, 0).wait();
  result.samples.assign(samples.data<i64>(), samples.data<i64>() + micro_batch_size_);
  return result;
}

std::vector<MicroBatch> BatchStream::next() {
  std::vector<MicroBatch> batches;
  const i64 count = microbatches_per_step();
  for (i64 m = 0; m < count; ++m) batches.push_back(next_micro_batch());
  consumed_samples_ += batch_size_at(batch_sizes_, consumed_samples_);
  return batches;
}

}  // namespace mcpp
