// Command megatron_cpp data verify|show|merge.
#include "checkpoint/directory/folder.h"
#include "data/preprocess/distributed/merge.h"
#include "data/preprocess/verify.h"
#include "megatron_cpp/commands/commands.h"
#include "megatron_cpp/config/stages.h"
#include "megatron_cpp/setup/datasets/dataset_provider.h"

namespace mcpp {
namespace {

struct VerifyOptions {
  std::vector<std::string> prefix;
  i64 vocab_size = 0;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("prefix", self.prefix, "datasets, without .bin/.idx");
    visit("vocab_size", self.vocab_size,
          "upper limit of token ids (exclusive); 0 = vocabulary size in the dataset's .json file, if it exists",
          at_least(0));
  }
};

struct DataShowOptions {
  std::string config;
  std::string split = "train";
  i64 iteration = 0;
  i64 sample = -1;
  std::string stage;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("config", self.config, "configuration file of the run, in TOML");
    visit("split", self.split, "train, valid (valid-<name> with several sets) or test");
    visit("iteration", self.iteration, "show all samples that this iteration reads, counted from 1", at_least(0));
    visit("sample", self.sample, "show this sample, counted from 0 over all stages", at_least(-1));
    visit("stage", self.stage, "for valid and test: name of the stage whose data are shown; empty = the first stage");
  }
};

struct MergeOptions {
  std::vector<std::string> prefix;
  std::string output_prefix;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("prefix", self.prefix, "datasets to join, in order, without .bin/.idx");
    visit("output_prefix", self.output_prefix, "joined dataset, without .bin/.idx");
  }
};

ExitCode merge(Arguments args, Log& log) {
  const Usage usage{.command = "megatron_cpp data merge",
                    .summary = "Joins datasets into one, identical to preprocessing all texts together.",
                    .positional = {"prefix"},
                    .required = {"prefix", "output_prefix"}};
  MergeOptions options;
  if (!read_options(args, usage, options, log)) return ExitCode::Done;
  check_file_outside_checkpoints(options.output_prefix);
  const PreprocessOutput output = merge_datasets(options.prefix, options.output_prefix, log);
  log.info(str(output.prefix, ": ", output.info.documents, " documents, ", output.info.tokens, " tokens"));
  return ExitCode::Done;
}

ExitCode verify_data(Arguments args, Log& log) {
  const Usage usage{.command = "megatron_cpp data verify",
                    .summary = "Reads an entire dataset and checks offsets, lengths, documents and token ids.",
                    .positional = {"prefix"},
                    .required = {"prefix"}};
  VerifyOptions options;
  if (!read_options(args, usage, options, log)) return ExitCode::Done;
  for (const std::string& prefix : options.prefix) log.info(to_text(verify_dataset(prefix, options.vocab_size, log)));
  return ExitCode::Done;
}

/// Returns the validation set named "valid" or, with several sets, "valid-<set>"; null if no text is held out.
const Dataset* chosen_validation_set(const Datasets& datasets, const std::string& split) {
  std::string choices;
  for (const ValidationSet& set : datasets.validation) {
    const std::string name = set.name.empty() ? "valid" : "valid-" + set.name;
    if (split == name) return set.dataset.get();
    choices += (choices.empty() ? "" : ", ") + name;
  }
  check_input(choices.empty(), "--split: \"", split, "\": must be one of the validation sets ", choices);
  return nullptr;
}

const Dataset& chosen_split(const Datasets& datasets, const std::string& split) {
  const Dataset* dataset = nullptr;
  if (split == "train")
    dataset = datasets.train.get();
  else if (split == "valid" || split.starts_with("valid-"))
    dataset = chosen_validation_set(datasets, split);
  else if (split == "test")
    dataset = datasets.test.get();
  else
    fail(ExitCode::BadInput, "--split: \"", split, "\": must be one of train, valid, test");
  check_input(dataset != nullptr, "--split: this configuration has no ", split, " data");
  return *dataset;
}

/// Returns the samples consumed before an iteration, counted from 1, if that iteration begins within `samples`.
std::optional<i64> samples_before(const std::vector<BatchSizeStep>& sizes, i64 iteration, i64 samples) {
  if (full_batches(sizes, samples).iterations < iteration - 1) return std::nullopt;
  i64 low = 0, high = samples;  // an upper bound suffices
  while (low < high) {
    const i64 middle = low + (high - low) / 2;
    if (full_batches(sizes, middle).iterations >= iteration - 1)
      high = middle;
    else
      low = middle + 1;
  }
  return high;
}

/// Returns the configuration of the stage that reads the samples to be shown, or of the run without stages.
Config chosen_stage(const Config& config, const DataShowOptions& options) {
  const bool is_train = options.split == "train";
  check_input(options.stage.empty() || !is_train, "--stage=", options.stage,
              ": applies only to --split=valid or test; for training, pass an iteration or a sample of the stage");
  if (config.stages.empty() && options.stage.empty()) return config;
  if (!is_train) return stage_named(config, options.stage);
  for (const Config& stage : config.stages) {
    const Stage& s = *stage.stage;
    if (options.iteration > 0 ? options.iteration <= s.last_iteration() : options.sample < s.last_sample())
      return stage;
  }
  return config.stages.back();
}

/// Logs the sample or the global batch that the options name.
void show(const Config& config, const DataShowOptions& options, const Dataset& dataset, const Log& log) {
  std::optional<Tokenizer> tokenizer;
  if (!config.data.tokenizer_model.empty()) tokenizer.emplace(config.data.tokenizer_model);
  const Tokenizer* decoder = tokenizer ? &*tokenizer : nullptr;
  const bool is_in_stage = config.stage && options.split == "train";
  const i64 first_sample = is_in_stage ? config.stage->first_sample : 0;
  const auto log_view = [&](SampleView view) {
    view.sample += first_sample;  // counted over all stages, as --sample
    log.info(to_text(view));
  };
  check_input(options.sample < first_sample + dataset.size(), "--sample=", options.sample, ": the ", options.split,
              " data of this configuration has ", first_sample + dataset.size(), " samples");
  if (options.sample >= 0) return log_view(show_sample(dataset, options.sample - first_sample, decoder));
  const i64 first_iteration = is_in_stage ? config.stage->first_iteration : 0;
  const std::vector<BatchSizeStep> sizes = config.batch_sizes();
  const std::optional<i64> consumed = samples_before(sizes, options.iteration - first_iteration, dataset.size() - 1);
  check_input(consumed.has_value(), "--iteration=", options.iteration, ": the ", options.split,
              " data of this configuration has ", first_sample + dataset.size(), " samples, which are ",
              first_iteration + full_batches(sizes, dataset.size()).iterations, " iterations");
  for (SampleView& view : show_batch(dataset, *consumed, batch_size_at(sizes, *consumed), decoder))
    log_view(std::move(view));
}

ExitCode show_data(Arguments args, Log& log) {
  const Usage usage{.command = "megatron_cpp data show",
                    .summary = "Shows the documents and tokens that a sample or an iteration of a run reads.",
                    .positional = {"config"},
                    .required = {"config"}};
  DataShowOptions options;
  std::optional<Config> config = read_config_and_options(args, usage, options, log);
  if (!config) return ExitCode::Done;
  check_input((options.iteration > 0) != (options.sample >= 0),
              "data show: pass either --iteration, counted from 1, or --sample, counted from 0");
  if (!config->stages.empty()) log.info(describe_stages(*config));
  Config shown = chosen_stage(*config, options);
  resolve_vocabulary(shown, log);
  const Datasets datasets = dataset_provider(shown, shown.training_length().samples, SingleIndexRank(), log);
  show(shown, options, chosen_split(datasets, options.split), log);
  return ExitCode::Done;
}

}  // namespace

ExitCode data_command(Arguments args, Log& log) {
  static constexpr std::array kSubcommands{
      Command{"verify", "check an entire dataset", verify_data}, Command{"merge", "join datasets into one", merge},
      Command{"show", "show which text a sample or an iteration reads", show_data}};
  return run_subcommand("data", kSubcommands, args, log);
}

}  // namespace mcpp
