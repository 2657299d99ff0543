#include "megatron_cpp/commands/checkpoint_branch.h"

#include <filesystem>

#include "base/object_store/stored_file.h"
#include "checkpoint/directory/lineage.h"
#include "checkpoint/directory/lock.h"
#include "checkpoint/directory/retention.h"
#include "checkpoint/load/copy.h"
#include "checkpoint/save/writer.h"
#include "data/tokenizer/tokenizer_file.h"
#include "megatron_cpp/commands/new_checkpoint.h"
#include "megatron_cpp/resume/checkpointing.h"
#include "megatron_cpp/resume/loading.h"

namespace mcpp {
namespace {

/// Name in RunState::extra of the checkpoint that a run branched from.
constexpr const char* kBranchName = "branched_from";

struct BranchOptions {
  std::string load;
  std::string save;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("load", self.load, "a checkpoint, or a folder of checkpoints whose newest intact one is used");
    visit("save", self.save, "folder of the new run (its checkpoint.save)");
  }
};

/// Returns the state with which the new run begins: the state of the checkpoint without the history of its folder.
RunState branch_state(const CheckpointReader& reader) {
  RunState state = reader.state();
  state.extra.erase(kInterimName);
  state.extra.erase(kLineageName);
  state.extra[kBranchName] = reader.directory().string();
  return state;
}

}  // namespace

ExitCode branch_checkpoint(Arguments args, Log& log) {
  const Usage usage{.command = "megatron_cpp checkpoint branch",
                    .summary =
                        "Copies a checkpoint with its optimizer states to a new folder. A run with this folder as "
                        "checkpoint.save continues from it, for example with a decaying learning rate.",
                    .positional = {"load", "save"},
                    .required = {"load", "save"}};
  BranchOptions options;
  if (!read_options(args, usage, options, log)) return ExitCode::Done;
  check_without_checkpoints(options.save);
  const Path checkpoint = find_checkpoint(options.load, log);
  CheckpointReader reader(checkpoint);
  check_input(reader.manifest().coverage == Coverage::Full, checkpoint.string(),
              ": is a part of a local checkpoint (checkpoint.local_save); use one of checkpoint.save");
  check_input(optimizer_steps_of(reader.state()).has_value(), checkpoint.string(),
              ": has only weights, from which a run cannot continue; start one with checkpoint.load and "
              "checkpoint.finetune");
  const Path tokenizer = saved_tokenizer(folder_of_checkpoint(checkpoint));
  const std::string content = stored_file_exists(tokenizer) ? read_tokenizer_file(local_copy(tokenizer)) : "";
  const FolderLock lock(options.save, log);
  CopiedTensors tensors(reader);
  ProgressShardSource source(tensors, log, "copying");
  const Path path = save_model(options.save, content, branch_state(reader), source, log);
  log.info(str("wrote ", path.string(), "; a run with checkpoint.save = ", options.save, " continues from it"));
  return ExitCode::Done;
}

}  // namespace mcpp
