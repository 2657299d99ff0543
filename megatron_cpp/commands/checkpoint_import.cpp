#include "megatron_cpp/commands/checkpoint_import.h"

#include <algorithm>

#include "base/checksum.h"
#include "checkpoint/directory/folder.h"
#include "checkpoint/directory/lock.h"
#include "checkpoint/save/writer.h"
#include "data/tokenizer/tokenizer_file.h"
#include "megatron_cpp/commands/new_checkpoint.h"
#include "megatron_cpp/exchange/import_run.h"
#include "megatron_cpp/setup/datasets/dataset_provider.h"
#include "megatron_cpp/setup/version.h"

namespace mcpp {
namespace {

struct ImportRunOptions {
  std::string path;
  std::string save;
  std::string config;
  std::string precision;
  std::string tokenizer_model;
  bool weights_only = false;
  i64 iteration = -1;
  i64 consumed_samples = -1;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("path", self.path,
          "folder with a distributed checkpoint (.metadata), with mp_rank_* or with pytorch_model.bin; or a file of "
          "torch.save");
    visit("save", self.save, "folder to write the checkpoint in");
    visit("config", self.config,
          "configuration of the run that continues (TOML), or config.json of a Hugging Face model; empty = config.json "
          "in the folder, or the arguments that Megatron-LM stored");
    visit("precision", self.precision, "fp32, bf16 or fp16; empty = as in the configuration or in the files");
    visit("tokenizer_model", self.tokenizer_model, "tokenizer file to save with the checkpoint");
    visit("weights_only", self.weights_only, "leave out the state of the optimizer, for finetuning and evaluation");
    visit("iteration", self.iteration, "iteration of the run; -1 = as in the files", at_least(-1));
    visit("consumed_samples", self.consumed_samples,
          "samples that the run has consumed; -1 = as in the files, or iteration * training.global_batch_size",
          at_least(-1));
  }
};

std::optional<i64> if_stated(i64 value) {
  return value < 0 ? std::nullopt : std::optional(value);
}

void report(const ImportedRun& run, const std::string& path, const Log& log) {
  log.info(str(path, ": names of ", name_of(run.format), "; ",
               run.has_optimizer ? str("weights and AdamW after ", run.optimizer_steps, " updates, iteration ",
                                       run.progress.iteration, ", ", run.progress.consumed_samples, " samples")
                                 : std::string("weights only")));
  if (run.padding_rows > 0)
    log.info(str(path, ": the last ", run.padding_rows,
                 " rows of the vocabulary are not imported, because "
                 "model.vocab_size is ",
                 run.config.model.vocab_size));
  if (run.unused.empty()) return;
  std::vector<std::string> shown(
      run.unused.begin(),
      run.unused.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(run.unused.size(), 5)));
  log.warn(str(path, ": ", run.unused.size(), " tensors are not weights of the model and are not imported: ",
               join(shown, ", "), run.unused.size() > shown.size() ? ", ..." : ""));
}

}  // namespace

ExitCode import_checkpoint(Arguments args, Log& log) {
  const Usage usage{.command = "megatron_cpp checkpoint import",
                    .summary =
                        "Converts a checkpoint of a training run of PyTorch (torch.save, "
                        "torch.distributed.checkpoint), torchtitan or Megatron-LM, with the state of AdamW, so "
                        "that pretrain continues the run.",
                    .positional = {"path"},
                    .required = {"path", "save"}};
  ImportRunOptions options;
  if (!read_options(args, usage, options, log)) return ExitCode::Done;
  check_without_checkpoints(options.save);
  CpuDevice device;
  const ImportedRun run = import_run({.path = options.path,
                                      .config = options.config,
                                      .save = options.save,
                                      .dtype = dtype_option(options.precision),
                                      .weights_only = options.weights_only,
                                      .iteration = if_stated(options.iteration),
                                      .consumed_samples = if_stated(options.consumed_samples)},
                                     device);
  report(run, options.path, log);
  RunState state;
  if (run.has_optimizer) state = run_state(run.config, run.progress, run.optimizer_steps);
  state.config = print_config(run.config);
  state.program_version = version_text();
  std::string tokenizer;
  if (!options.tokenizer_model.empty()) {
    open_tokenizer(options.tokenizer_model, "", run.config.model);
    tokenizer = read_tokenizer_file(options.tokenizer_model);
    state.tokenizer_checksum = checksum_hex(tokenizer);
  }
  const FolderLock lock(options.save, log);
  ProgressShardSource source(*run.shards, log, "importing");
  log.info(str("wrote ", save_model(options.save, tokenizer, state, source, log).string()));
  return ExitCode::Done;
}

}  // namespace mcpp
