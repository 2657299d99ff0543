#include "megatron_cpp/commands/checkpoint_export.h"

#include "checkpoint/directory/folder.h"
#include "megatron_cpp/commands/new_checkpoint.h"
#include "megatron_cpp/exchange/export_run.h"
#include "megatron_cpp/resume/loading.h"

namespace mcpp {
namespace {

/// Names of weights that an export can have.
enum class ExportedNames : u8 { Torchtitan, Huggingface };

}  // namespace

template <>
struct EnumNames<ExportedNames> {
  static constexpr std::array<std::string_view, 2> value{"torchtitan", "huggingface"};
};

namespace {

struct ExportDcpOptions {
  std::string load;
  std::string folder;
  ExportedNames names = ExportedNames::Torchtitan;
  WeightSource weights = WeightSource::Model;
  bool weights_only = false;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("load", self.load, "a checkpoint, or a folder of checkpoints whose newest intact one is used");
    visit("folder", self.folder, "folder to write .metadata and __0_0.distcp in");
    visit("names", self.names, "names of the weights: those of torchtitan's Llama, or of the Hugging Face model type");
    visit("weights", self.weights, kWeightsHelp);
    visit("weights_only", self.weights_only, "leave out the state of the optimizer");
  }
};

}  // namespace

ExitCode export_dcp(Arguments args, Log& log) {
  const Usage usage{.command = "megatron_cpp checkpoint export-dcp",
                    .summary =
                        "Writes the weights of a checkpoint and the state of AdamW as a folder that "
                        "torch.distributed.checkpoint loads.",
                    .positional = {"load", "folder"},
                    .required = {"load", "folder"}};
  ExportDcpOptions options;
  if (!read_options(args, usage, options, log)) return ExitCode::Done;
  check_outside_checkpoints(options.folder);
  const Path checkpoint = find_checkpoint(options.load, log);
  CheckpointReader reader(checkpoint);
  reader.set_listener(make_progress_listener(log, "exporting"));
  const Config config = parse_stored_config(reader.state().config, checkpoint.string() + "/config");
  const bool is_torchtitan = options.names == ExportedNames::Torchtitan;
  export_distributed(options.folder, config, reader,
                     {.format = is_torchtitan ? WeightFormat::Torchtitan : WeightFormat::Huggingface,
                      .weights = options.weights,
                      .weights_only = options.weights_only});
  log.info(str("wrote ", options.folder));
  return ExitCode::Done;
}

}  // namespace mcpp
