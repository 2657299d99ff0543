// Command megatron_cpp checkpoint
// ls|show|verify|diff|prune|average|branch|upcycle|import|import-hf|export-hf|export-dcp.
#include <algorithm>
#include <array>
#include <filesystem>

#include "base/checksum.h"
#include "checkpoint/directory/folder.h"
#include "checkpoint/directory/lock.h"
#include "checkpoint/load/inspect.h"
#include "checkpoint/load/reader.h"
#include "checkpoint/save/writer.h"
#include "data/tokenizer/tokenizer_file.h"
#include "megatron_cpp/commands/checkpoint_average.h"
#include "megatron_cpp/commands/checkpoint_branch.h"
#include "megatron_cpp/commands/checkpoint_export.h"
#include "megatron_cpp/commands/checkpoint_import.h"
#include "megatron_cpp/commands/commands.h"
#include "megatron_cpp/commands/new_checkpoint.h"
#include "megatron_cpp/huggingface/huggingface.h"
#include "megatron_cpp/huggingface/huggingface_config.h"
#include "megatron_cpp/resume/checkpointing.h"
#include "megatron_cpp/resume/loading.h"
#include "megatron_cpp/setup/datasets/dataset_provider.h"
#include "megatron_cpp/setup/version.h"

namespace mcpp {
namespace {

struct PathOptions {
  std::string path;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("path", self.path, "a checkpoint, or a folder of checkpoints");
  }
};

struct ShowOptions {
  std::string path;
  bool toml = false;
  bool all = false;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("path", self.path, "a checkpoint, or a folder of checkpoints");
    visit("toml", self.toml, "print section [model] of its configuration, as a base for a new configuration");
    visit("all", self.all, "with --toml: all sections");
  }
};

struct DiffOptions {
  std::string a, b;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("a", self.a, "a checkpoint, or the folder of checkpoints whose latest one is used");
    visit("b", self.b, "checkpoint to compare with");
  }
};

struct PruneOptions {
  std::string folder;
  i64 keep_latest_k = CheckpointConfig{}.keep_latest_k;
  i64 save_retain_interval = 0;
  bool dry_run = false;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("folder", self.folder, "a folder of checkpoints");
    visit("keep_latest_k", self.keep_latest_k, "number of newest checkpoints to keep", at_least(1));
    visit("save_retain_interval", self.save_retain_interval,
          "also keep checkpoints at multiples of this iteration; 0 = none", at_least(0));
    visit("dry_run", self.dry_run, "only print what would be removed");
  }
};

struct ImportOptions {
  std::string folder;
  std::string save;
  std::string precision;
  i64 mtp_num_layers = -1;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("folder", self.folder,
          "Hugging Face model: config.json and model.safetensors, or else model.safetensors.index.json and its parts");
    visit("save", self.save, "folder to write the checkpoint in");
    visit("precision", self.precision, "fp32, bf16 or fp16; empty = as in the file");
    visit("mtp_num_layers", self.mtp_num_layers,
          "layers for multi-token prediction to import; 0 = none, -1 = all in the file", at_least(-1));
  }
};

struct ExportOptions {
  std::string load;
  std::string folder;
  WeightSource weights = WeightSource::Model;
  std::string tokenizer_model;
  std::string precision;
  std::string model_type;
  ExportQuantization quantization = ExportQuantization::None;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("load", self.load, "a checkpoint, or a folder of checkpoints whose newest intact one is used");
    visit("folder", self.folder, "folder to write config.json and safetensors in");
    visit("weights", self.weights, kWeightsHelp);
    visit("tokenizer_model", self.tokenizer_model, "tokenizer file; empty = the one saved next to the checkpoints");
    visit("precision", self.precision, "fp32, bf16 or fp16; empty = as in the checkpoint");
    visit(
        "model_type", self.model_type,
        "model type to write, such as llama or phi3, if several can express the model; empty = the first suitable one");
    visit(
        "quantization", self.quantization,
        "fp8_block: write matrices of attention, MLPs and experts in E4M3, with a scale per block of 128 x 128, as in "
        "DeepSeek-V3");
  }
};

struct UpcycleOptions {
  std::string load;
  std::string save;
  std::string tokenizer_model;
  i64 seed = TrainingConfig{}.seed;
  MoeConfig moe;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("load", self.load,
          "a checkpoint of a dense model, or a folder of checkpoints whose newest intact one is used");
    visit("save", self.save, "folder to write the checkpoint in");
    visit("tokenizer_model", self.tokenizer_model, "tokenizer file; empty = the one saved next to the checkpoints");
    visit("seed", self.seed, "seed of the routers' random weights", at_least(0));
    MoeConfig::fields(self.moe, visit);
  }
};

/// Reads the single path argument of a subcommand. Returns false if --help was requested.
bool read_path(Arguments args, const char* command, const char* summary, PathOptions& options, const Log& log) {
  const Usage usage{.command = command, .summary = summary, .positional = {"path"}, .required = {"path"}};
  return read_options(args, usage, options, log);
}

ExitCode list(Arguments args, Log& log) {
  PathOptions options;
  if (!read_path(args, "megatron_cpp checkpoint ls", "Lists the checkpoints of a folder.", options, log))
    return ExitCode::Done;
  log.info(to_text(list_checkpoints(options.path)));
  return ExitCode::Done;
}

ExitCode show(Arguments args, Log& log) {
  const Usage usage{.command = "megatron_cpp checkpoint show",
                    .summary = "Shows the content of a checkpoint, or the configuration that it was saved with.",
                    .positional = {"path"},
                    .required = {"path"}};
  ShowOptions options;
  if (!read_options(args, usage, options, log)) return ExitCode::Done;
  check_input(options.toml || !options.all, "--all: applies only to --toml");
  const Path checkpoint = resolve_checkpoint(options.path);
  if (!options.toml) {
    log.info(describe_checkpoint(checkpoint));
    return ExitCode::Done;
  }
  const CheckpointReader reader(checkpoint);
  const Config config = parse_stored_config(reader.state().config, checkpoint.string() + "/config");
  log.info(options.all ? print_config(without_unused_keys(config)) : print_section(config, "model"));
  return ExitCode::Done;
}

ExitCode verify(Arguments args, Log& log) {
  PathOptions options;
  if (!read_path(args, "megatron_cpp checkpoint verify",
                 "Reads every byte and compares checksums; exit code 2 if anything is damaged.", options, log)) {
    return ExitCode::Done;
  }
  const std::vector<VerifyResult> results = verify_checkpoints(options.path, log);
  log.info(to_text(results));
  const bool is_intact = std::ranges::all_of(results, [](const VerifyResult& r) { return r.problems.empty(); });
  return is_intact ? ExitCode::Done : ExitCode::BadInput;
}

/// Exit code of diff(1) for different files, which is also the exit code of internal errors.
constexpr ExitCode kDifferent{1};

ExitCode diff(Arguments args, Log& log) {
  const Usage usage{
      .command = "megatron_cpp checkpoint diff",
      .summary =
          "Compares two checkpoints tensor by tensor, regardless of their layouts; exit code 1 if tensors differ.",
      .positional = {"a", "b"},
      .required = {"a", "b"}};
  DiffOptions options;
  if (!read_options(args, usage, options, log)) return ExitCode::Done;
  const CheckpointDifference difference =
      diff_checkpoints(resolve_checkpoint(options.a), resolve_checkpoint(options.b));
  log.info(to_text(difference));
  return difference.tensors.empty() ? ExitCode::Done : kDifferent;
}

/// Takes the lock, so that no job that saves there is disturbed. Removes nothing unless the remaining checkpoints are
/// intact.
ExitCode prune_folder(Arguments args, Log& log) {
  const Usage usage{.command = "megatron_cpp checkpoint prune",
                    .summary = "Removes old checkpoints of a folder, after verifying its latest checkpoint.",
                    .positional = {"folder"},
                    .required = {"folder"}};
  PruneOptions options;
  if (!read_options(args, usage, options, log)) return ExitCode::Done;
  const Path folder = options.folder;
  check_input(!checkpoints_in(folder).empty(), folder.string(), " has no checkpoints");
  const FolderLock lock(folder, log);
  const std::optional<Path> latest = latest_in(folder);
  check_input(latest.has_value(), (folder / kLatestName).string(),
              " does not name a checkpoint of this folder; nothing is removed");
  const std::vector<std::string> problems = find_problems(*latest);
  check_input(problems.empty(), latest->string(), " is damaged; nothing is removed\n", join(problems, "\n"));

  const Retention retention{.keep_latest_k = options.keep_latest_k,
                            .save_retain_interval = options.save_retain_interval,
                            .keeps_rollback_targets = true};
  const std::vector<Path> old = find_outdated(folder, retention);
  for (const Path& path : old) log.info(str(options.dry_run ? "would remove " : "removing ", path.string()));
  if (!options.dry_run) prune(folder, retention, log);
  log.info(str(old.size(), options.dry_run ? " to remove, " : " removed, ",
               checkpoints_in(folder).size() - (options.dry_run ? old.size() : 0), " kept"));
  return ExitCode::Done;
}

/// Returns the model of the checkpoint with these experts. Throws BadInput if they are incompatible.
ModelConfig with_experts(const Config& dense, const MoeConfig& moe) {
  check_input(dense.model.moe.num_experts == 0, "--load: this model already has experts");
  check_input(moe.num_experts > 0, "--num_experts: must be at least 1");
  ModelConfig model = dense.model;
  model.moe = moe;
  const std::vector<std::string> conflicts = model.conflicts();
  check_input(conflicts.empty(), join(conflicts, "\n"));
  return model;
}

ExitCode upcycle(Arguments args, Log& log) {
  const Usage usage{.command = "megatron_cpp checkpoint upcycle",
                    .summary =
                        "Converts the weights of a dense checkpoint to a mixture of experts, each initialized with the "
                        "MLP of its layer, for training with checkpoint.finetune.",
                    .positional = {"load", "save"},
                    .required = {"load", "save", "num_experts"}};
  UpcycleOptions options;
  if (!read_options(args, usage, options, log)) return ExitCode::Done;
  check_without_checkpoints(options.save);
  const Path checkpoint = find_checkpoint(options.load, log);
  CheckpointReader reader(checkpoint);
  Config config = parse_stored_config(reader.state().config, checkpoint.string() + "/config");
  config.model = with_experts(config, options.moe);
  const Path tokenizer = find_valid_tokenizer(options.tokenizer_model, reader, config, log);
  CpuDevice device;
  const auto weights = mcpp::upcycle(reader, config.model, static_cast<u64>(options.seed), device);
  const FolderLock lock(options.save, log);
  RunState state;
  state.tokenizer_checksum = reader.state().tokenizer_checksum;
  store_special_tokens(read_special_tokens(reader.state(), checkpoint.string()), state);
  const std::string content = tokenizer.empty() ? "" : read_tokenizer_file(tokenizer);
  state.config = print_config(config);
  state.program_version = version_text();
  ProgressShardSource source(*weights, log, "upcycling");
  log.info(str("wrote ", save_model(options.save, content, state, source, log).string()));
  return ExitCode::Done;
}

/// Returns the special tokens of a Hugging Face folder. Checks its tokenizer before it is copied.
SpecialTokens read_checked_tokens(const Path& folder, const Path& tokenizer, const ModelConfig& model) {
  if (tokenizer.empty()) return read_stated_tokens(folder, nullptr, model.vocab_size);
  const Tokenizer opened(tokenizer);
  return read_stated_tokens(folder, &opened, model.vocab_size);
}

/// Logs warnings about files, tensors and keys that the import ignores.
void warn_of_differences(const std::string& folder, const ImportedModel& imported, const Log& log) {
  if (imported.ignores_index)
    log.warn(str(folder, ": has both model.safetensors and model.safetensors.index.json; the weights are read ",
                 "from model.safetensors, as in transformers"));
  if (!imported.skipped_layers.empty())
    log.warn(str(folder, ": the layers for multi-token prediction are not imported: ",
                 join(imported.skipped_layers, "*, "), "*"));
  if (imported.absent_layers > 0)
    log.warn(str(folder, ": config.json states ", imported.absent_layers,
                 " layers for multi-token prediction, but the file has none; the model is imported without them"));
}

ExitCode import_hf(Arguments args, Log& log) {
  const Usage usage{.command = "megatron_cpp checkpoint import-hf",
                    .summary = str("Converts a Hugging Face model to a checkpoint of weights, for evaluation, "
                                   "generation or finetuning. Model types: ",
                                   family_names(), "."),
                    .positional = {"folder"},
                    .required = {"folder", "save"}};
  ImportOptions options;
  if (!read_options(args, usage, options, log)) return ExitCode::Done;
  check_without_checkpoints(options.save);
  CpuDevice device;
  const std::optional<i64> mtp_layers =
      options.mtp_num_layers < 0 ? std::nullopt : std::optional(options.mtp_num_layers);
  ImportedModel imported = import_huggingface(options.folder, dtype_option(options.precision), device, mtp_layers);
  warn_of_differences(options.folder, imported, log);
  Config config;
  config.model = imported.model;
  config.training.precision = precision_of(imported.weights->shards().front().dtype);
  config.training.global_batch_size = config.training.train_iters = 1;
  const Path tokenizer = find_tokenizer_file(options.folder);
  const FolderLock lock(options.save, log);
  RunState state;
  std::string content;
  if (!tokenizer.empty()) {
    content = read_tokenizer_file(tokenizer);
    state.tokenizer_checksum = checksum_hex(content);
  }
  store_special_tokens(read_checked_tokens(options.folder, tokenizer, config.model), state);
  state.config = print_config(config);
  state.program_version = version_text();
  ProgressShardSource source(*imported.weights, log, "importing");
  log.info(str("wrote ", save_model(options.save, content, state, source, log).string()));
  return ExitCode::Done;
}

/// Removes multi-token prediction, with a warning, from a model that can be exported only without it.
void remove_unexportable_mtp(ModelConfig& model, const std::string& model_type, const Log& log) {
  const ModelConfig without = exportable_model(model, model_type);
  if (without.mtp_num_layers == model.mtp_num_layers) return;
  const std::string reason =
      model_type.empty() ? "no model type supports" : str("model type ", model_type, " does not support");
  log.warn(str("the layers of multi-token prediction are not exported, because ", reason, " them in this model"));
  model = without;
}

ExitCode export_hf(Arguments args, Log& log) {
  const Usage usage{
      .command = "megatron_cpp checkpoint export-hf",
      .summary = "Writes the weights of a checkpoint as a folder that transformers' from_pretrained reads.",
      .positional = {"load", "folder"},
      .required = {"load", "folder"}};
  ExportOptions options;
  if (!read_options(args, usage, options, log)) return ExitCode::Done;
  const Path checkpoint = find_checkpoint(options.load, log);
  CheckpointReader reader(checkpoint);
  reader.set_listener(make_progress_listener(log, "exporting"));
  Config config = parse_stored_config(reader.state().config, checkpoint.string() + "/config");
  remove_unexportable_mtp(config.model, options.model_type, log);
  export_huggingface(options.folder, config.model, reader,
                     {.dtype = dtype_option(options.precision),
                      .quantization = options.quantization,
                      .weights = options.weights,
                      .model_type = options.model_type,
                      .tokenizer_model = find_valid_tokenizer(options.tokenizer_model, reader, config, log),
                      .tokens = read_special_tokens(reader.state(), checkpoint.string())});
  log.info(str("wrote ", options.folder));
  return ExitCode::Done;
}

}  // namespace

ExitCode checkpoint_command(Arguments args, Log& log) {
  static constexpr std::array kSubcommands{
      Command{"ls", "list the checkpoints of a folder", list},
      Command{"show", "show the content of a checkpoint", show},
      Command{"verify", "read every byte and compare checksums", verify},
      Command{"diff", "compare two checkpoints", diff},
      Command{"prune", "remove old checkpoints", prune_folder},
      Command{"average", "average the weights of several checkpoints", average_checkpoints},
      Command{"branch", "copy a checkpoint to a folder for a second run", branch_checkpoint},
      Command{"upcycle", "convert a dense model to a mixture of experts", upcycle},
      Command{"import", "continue a training run of PyTorch, torchtitan or Megatron-LM", import_checkpoint},
      Command{"import-hf", "convert from a Hugging Face model", import_hf},
      Command{"export-hf", "convert to a Hugging Face model", export_hf},
      Command{"export-dcp", "convert to a distributed checkpoint of PyTorch", export_dcp},
  };
  return run_subcommand("checkpoint", kSubcommands, args, log);
}

}  // namespace mcpp
