// megatron_cpp preprocess: text to token files.
#include "data/prepare/preprocess.h"

#include "megatron_cpp/commands/commands.h"
#include "megatron_cpp/config/options.h"

namespace mcpp {

ExitCode preprocess_command(Arguments args, Log& log) {
  const Usage usage{
      .command = "megatron_cpp preprocess",
      .summary = "Turns text or JSONL into <output_prefix>_<key>_document.bin and .idx, as Megatron-LM writes them.",
      .positional = {"input"},
      .required = {"input", "output_prefix", "tokenizer_model"}};
  PreprocessOptions options;
  if (!read_options(args, usage, options, log)) return ExitCode::Done;
  const PreprocessResult result = run_preprocess(options, log);
  for (const PreprocessOutput& output : result.outputs) {
    const DatasetInfo& info = output.info;
    const double bytes = static_cast<double>(info.source_bytes), tokens = static_cast<double>(info.tokens);
    log.info(str(output.prefix, ": ", info.documents, " documents, ", info.tokens, " tokens, ", bytes / tokens,
                 " bytes per token"));
  }
  if (result.empty_documents > 0) log.info(str(result.empty_documents, " documents without text"));
  if (result.malformed_lines > 0) log.warn(str(result.malformed_lines, " malformed lines were left out"));
  return ExitCode::Done;
}

}  // namespace mcpp
