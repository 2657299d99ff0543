#include "megatron_cpp/setup/datasets/dataset_provider.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <optional>
#include <thread>

#include "base/checksum.h"
#include "base/number_format.h"
#include "comm/object_collectives.h"
#include "data/dataset/batch.h"
#include "data/dataset/dataset_info.h"
#include "data/dataset/fim.h"
#include "data/dataset/mock_dataset.h"
#include "data/tokenizer/tokenizer_file.h"
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
  Tensor flags = Tensor::empty({2}, DType::F32, host, MemoryClass::Other);
  flags.data<float>()[0] = local.is_busy ? 1 : 0;
  flags.data<float>()[1] = local.has_signal ? 1 : 0;
  group.all_reduce(flags, ReduceOp::Max).wait();
  return {flags.data<float>()[0] != 0, flags.data<float>()[1] != 0};
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
  });
  return broadcast_from_rank0(node_, [&] { return local; });
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

/// Returns the token of the mock text at which a stage begins to read.
i64 mock_start(const Stage& stage) {
  StagePosition position;
  i64 start = 0;
  for (const StageText& text : stage.texts) {
    position.begin_stage(text.repeat_data);
    start = position.next();
    position.advance(text.samples * text.seq_length);
  }
  return start;
}

/// Creates mock datasets with the given numbers of samples; null where the number is 0.
Datasets mock_datasets(const Config& config, std::array<i64, 3> num_samples, const Log& log) {
  const i64 vocab_size = config.model.vocab_size, eod = config.data.eod_token;
  check_input(vocab_size > 1, "data.mock_data: needs a model.vocab_size of 2 or more");
  check_input(eod < vocab_size, "data.eod_token: ", eod, " is outside the vocabulary of ", vocab_size);
  const auto make = [&](std::size_t split) -> std::unique_ptr<Dataset> {
    if (num_samples[split] <= 0) return nullptr;
    const MockText text{.seed = config.training.seed,
                        .split_name = kSplitNames[split],
                        .vocab_size = vocab_size,
                        .eod = eod,
                        .first_token = split == 0 && config.stage ? mock_start(*config.stage) : 0};
    return std::make_unique<MockDataset>(text, num_samples[split], config.model.seq_length);
  };
  log.info("data: random tokens (data.mock_data); losses are meaningless");
  Datasets datasets{.sources = {}, .train = make(0), .test = make(2), .validation = {}, .stage_starts = {}};
  if (auto valid = make(1)) datasets.validation.push_back({"", std::move(valid)});
  return datasets;
}

}  // namespace

Datasets dataset_provider(const Config& config, i64 train_samples, const IndexRanks& ranks, const Log& log) {
  const TrainingConfig& training = config.training;
  const i64 eval_samples = config.evaluation_samples();  // the same samples at every evaluation
  if (config.data.mock_data) return mock_datasets(config, {train_samples, eval_samples, eval_samples}, log);
  Datasets datasets = build_train_valid_test_datasets(config.data, config.model.seq_length, training.seed,
                                                      {train_samples, eval_samples, eval_samples}, log, ranks,
                                                      config.stage ? config.stage->texts : std::vector<StageText>());
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
                         i64 consumed_samples, Session& session, SampleNumbers numbers)
    : data_(config.data),
      micro_batch_size_(config.training.micro_batch_size),
      model_(config.model),
      session_(session),
      microbatches_(std::move(batch_sizes),
                    {micro_batch_size_, session.parallel.dp->size(), session.parallel.dp->rank()}, consumed_samples),
      needs_tokens_(session.parallel.coordinates.pp == 0 || session.parallel.has_output_part() ||
                    config.data.has_document_starts()),
      numbers_(numbers) {
  if (!needs_tokens_ || session.parallel.tp_cp->rank() != 0) return;
  const auto samples_to_read = [iterator = microbatches_, numbers]() mutable {
    std::vector<i64> samples = iterator();
    // Past the end, repeat the last sample.
    for (i64& sample : samples) sample = std::min(sample, numbers.end - 1) - numbers.first;
    return samples;
  };
  prefetcher_ =
      std::make_unique<Prefetcher>(dataset, config.model.vocab_size, samples_to_read, config.data.prefetch_batches);
}

Batch BatchStream::read(const std::vector<i64>& samples) {
  Batch batch = prefetcher_->next();
  for (std::size_t i = 0; i < batch.labels.size(); ++i) {
    if (samples[i / static_cast<std::size_t>(batch.seq_length)] >= numbers_.end) batch.labels[i] = -1;
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
  const std::vector<i32> starts =
      data_.has_document_starts() ? document_starts(batch, data_.eod_token) : std::vector<i32>();
  if (data_.has_document_starts()) {
    const Tensor shared_starts = shared(starts);
    if (data_.reset_attention_mask) whole.attention_starts = shared_starts;
    if (data_.reset_position_ids) whole.position_starts = shared_starts;
  }
  const bool predicts = session_.parallel.has_output_part();
  for (i64 distance = 1; predicts && distance <= model_.mtp_num_layers; ++distance) {
    const FutureBatch future =
        future_batch(batch, distance, data_.reset_attention_mask ? std::span(starts) : std::span<const i32>());
    const Tensor tokens = shared(future.tokens);
    whole.future.push_back({.tokens = tokens, .targets = shared(future.labels)});
  }
  return shard();
}

std::vector<MicroBatch> BatchStream::next() {
  std::vector<MicroBatch> batches(static_cast<std::size_t>(microbatches_.microbatches()));
  for (MicroBatch& batch : batches) batch = next_micro_batch();
  return batches;
}

namespace {

/// Returns the prefixes of all data paths, in which each may be preceded by its weight.
std::vector<std::string> prefixes(const DataConfig& data) {
  std::vector<std::string> existing;
  for (const auto* list : {&data.data_path, &data.train_data_path, &data.valid_data_path, &data.test_data_path}) {
    for (const std::string& entry : *list) {
      if (std::filesystem::exists(entry + ".idx")) existing.push_back(entry);
    }
  }
  return existing;
}

/// Fills in data.eod_token if it is unset and document boundaries depend on it.
void resolve_eod(DataConfig& data, i64 vocab_size, const Tokenizer* tokenizer, const Log& log) {
  if (!data.reads_eod()) return;
  if (data.eod_token < 0 && tokenizer) data.eod_token = tokenizer->eod();
  for (const std::string& prefix : prefixes(data)) {
    const std::optional<DatasetInfo> info = read_dataset_info(prefix);
    if (!info) continue;
    check_input(info->append_eod, prefix, ".json: the dataset was made without an <eod> after each document; ",
                "data.reset_position_ids, data.reset_attention_mask, data.eod_mask_loss and data.fim_rate need one");
    if (data.eod_token < 0) data.eod_token = info->eod;
    check_input(info->eod == data.eod_token, prefix, ".json: documents end with token ", info->eod,
                ", data.eod_token is ", data.eod_token);
  }
  check_input(data.eod_token >= 0,
              "data.eod_token: is missing; set it or data.tokenizer_model; data.reset_position_ids, "
              "data.reset_attention_mask, data.eod_mask_loss and data.fim_rate read it");
  check_input(data.eod_token < vocab_size, "data.eod_token: ", data.eod_token, " is outside the vocabulary of ",
              vocab_size);
  for (const std::string& prefix : prefixes(data)) {
    const double ended = check_ends_documents(IndexedDataset(prefix), data.eod_token);
    if (ended < 0.5) {
      log.warn(str(prefix, ".bin: only ", fixed(100 * ended, 0),
                   " % of the documents end with data.eod_token = ", data.eod_token,
                   "; if that is not the token that ends documents, documents are split at the wrong positions"));
    }
  }
}

void check_dataset(const std::string& prefix, const Config& config, const Tokenizer* tokenizer) {
  const std::optional<DatasetInfo> info = read_dataset_info(prefix);
  if (!info) return;
  check_input(info->vocab_size <= config.model.vocab_size, prefix, ".json: the dataset was made with a vocabulary of ",
              info->vocab_size, ", model.vocab_size is ", config.model.vocab_size);
  check_input(!tokenizer || tokenizer->checksum() == info->tokenizer_checksum, prefix,
              ".json: the dataset was made with a different tokenizer than ", config.data.tokenizer_model,
              "; preprocess the text again with this one, or set data.tokenizer_model to the one it was made with");
}

/// Checks that all datasets of a run use the same tokenizer, even if data.tokenizer_model is not set.
void check_same_tokenizer(const std::vector<std::string>& prefixes) {
  std::string first, checksum;
  for (const std::string& prefix : prefixes) {
    const std::optional<DatasetInfo> info = read_dataset_info(prefix);
    if (!info) continue;
    check_input(first.empty() || info->tokenizer_checksum == checksum, prefix,
                ".json: the dataset was made with a different tokenizer than ", first,
                "; all datasets of a run must use the same tokenizer");
    first = prefix, checksum = info->tokenizer_checksum;
  }
}

/// Warns about unused embedding rows. A few are padding; many are probably a mistake, which costs memory and time.
void warn_of_unused_rows(const ModelConfig& model, i64 pieces, const Log& log) {
  const i64 unused = model.vocab_size - pieces;
  if (unused <= std::max(model.make_vocab_size_divisible_by, pieces / 10)) return;
  log.warn(str("model.vocab_size: ", model.vocab_size, " is far above the ", pieces,
               " pieces of data.tokenizer_model: ", unused, " tokens never occur; 0 uses the size of the tokenizer"));
}

}  // namespace

void resolve_vocabulary(Config& config, const Log& log) {
  std::optional<Tokenizer> tokenizer;
  if (!config.data.tokenizer_model.empty()) tokenizer.emplace(config.data.tokenizer_model);
  check_input(tokenizer || config.model.vocab_size > 0, "model.vocab_size: is missing; set it or data.tokenizer_model");
  if (tokenizer && config.model.vocab_size == 0) config.model.vocab_size = tokenizer->vocab_size();
  check_input(!tokenizer || config.model.vocab_size >= tokenizer->vocab_size(),
              "model.vocab_size: ", config.model.vocab_size, " is below the ", tokenizer ? tokenizer->vocab_size() : 0,
              " pieces of ", config.data.tokenizer_model);
  warn_of_unused_rows(config.model, tokenizer ? tokenizer->vocab_size() : config.model.vocab_size, log);
  const std::vector<std::string> datasets = prefixes(config.data);
  for (const std::string& prefix : datasets) check_dataset(prefix, config, tokenizer ? &*tokenizer : nullptr);
  check_same_tokenizer(datasets);
  resolve_eod(config.data, config.model.vocab_size, tokenizer ? &*tokenizer : nullptr, log);
  if (config.data.fim_rate > 0) FimTransform{config.data};  // checks its tokens
}

TokenizerSource tokenizer_source(const DataConfig& data) {
  if (const std::string& path = data.tokenizer_model; !path.empty()) {
    const std::string content = read_tokenizer_file(path);
    return {.file = path, .checksum = checksum_hex(content)};
  }
  for (const std::string& prefix : prefixes(data)) {
    if (const auto info = read_dataset_info(prefix); info && !info->tokenizer_checksum.empty())
      return {.file = info_path(prefix).string(), .checksum = info->tokenizer_checksum};
  }
  return {};
}

Tokenizer open_tokenizer(const Path& path, const std::string& trained_with, const ModelConfig& model) {
  Tokenizer tokenizer(path);
  check_input(trained_with.empty() || tokenizer.checksum() == trained_with, path.string(),
              ": is not the tokenizer that this model was trained with (checksum ", tokenizer.checksum(),
              ", trained with ", trained_with, "); pass that one as --tokenizer_model");
  check_input(tokenizer.vocab_size() <= model.vocab_size, path.string(), ": has ", tokenizer.vocab_size(),
              " pieces, the model only ", model.vocab_size);
  return tokenizer;
}

void check_data(const Config& config, const World& world, const Log& log) {
  if (!config.data.has_data()) {
    log.info("data: no datasets (data.data_path is not set)");
    return;
  }
  const Datasets datasets = dataset_provider(config, config.training_length().samples,
                                             SharedIndexRanks(world.ranks, world.ranks_of_node()), log);
  std::string text = "data:";
  const auto add = [&](const std::string& name, const Dataset* dataset) {
    text += str("\n  ", name, "  ", dataset ? str(dataset->size(), " samples") : std::string("none"));
  };
  add("train     ", datasets.train.get());
  if (datasets.validation.empty()) add("validation", nullptr);
  for (const ValidationSet& set : datasets.validation)
    add(set.name.empty() ? "validation" : "validation " + set.name, set.dataset.get());
  add("test      ", datasets.test.get());
  log.info(text);
}

}  // namespace mcpp
