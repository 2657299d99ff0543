// Command megatron_cpp preprocess: converts text to token files.
#include "data/preprocess/preprocess.h"

#include <algorithm>
#include <thread>

#include "checkpoint/directory/folder.h"
#include "comm/object_collectives.h"
#include "megatron_cpp/commands/commands.h"
#include "megatron_cpp/config/arguments.h"
#include "megatron_cpp/prepare/distributed_preprocess.h"
#include "megatron_cpp/setup/initialize.h"

namespace mcpp {
namespace {

i64 workers_of(const PreprocessOptions& options, const World& world) {
  if (options.workers > 0) return options.workers;
  if (world.ranks.size() > 1 && world.cores_per_rank > 0) return world.cores_per_rank;
  return std::max<i64>(1, std::thread::hardware_concurrency());
}

/// Uses parts if there are several ranks, if requested, or if an earlier run left parts.
PreprocessResult preprocess(const PreprocessOptions& options, const World& world, const Log& log) {
  const auto uses_parts = [&] { return world.ranks.size() > 1 || options.parts || has_parts(options); };
  if (!broadcast_from_rank0(world.ranks, uses_parts)) return run_preprocess(options, log);
  return preprocess_in_parts(options, workers_of(options, world), world.ranks, log);
}

}  // namespace

ExitCode preprocess_command(Arguments args, Log& log, const World& world) {
  const Usage usage{
      .command = "megatron_cpp preprocess",
      .summary = "Converts text or JSONL to <output_prefix>_<key>_document.bin and .idx, in the format of Megatron-LM.",
      .positional = {"input"},
      .required = {"input", "output_prefix", "tokenizer_model"}};
  PreprocessOptions options;
  if (!read_options(args, usage, options, log)) return ExitCode::Done;
  check_file_outside_checkpoints(options.output_prefix);
  check_identical_on_ranks("command line", join(args, "\n"), world.ranks, "pass every rank the same arguments");
  const PreprocessResult result = preprocess(options, world, log);
  for (const PreprocessOutput& output : result.outputs) {
    if (output.is_loss_mask) continue;
    const DatasetInfo& info = output.info;
    const double bytes = static_cast<double>(info.source_bytes), tokens = static_cast<double>(info.tokens);
    log.info(str(output.prefix, ": ", info.documents, " documents, ", info.tokens, " tokens, ", bytes / tokens,
                 " bytes per token", info.has_loss_mask() ? str(", loss on ", info.targets, " tokens") : ""));
  }
  if (result.empty_documents > 0) log.info(str(result.empty_documents, " documents without text"));
  if (result.malformed_lines > 0) log.warn(str(result.malformed_lines, " malformed lines were skipped"));
  return ExitCode::Done;
}

}  // namespace mcpp
