#include "megatron_cpp/commands/new_checkpoint.h"

#include <algorithm>
#include <filesystem>

#include "base/object_store/stored_file.h"
#include "checkpoint/directory/folder.h"
#include "checkpoint/save/writer.h"
#include "data/tokenizer/tokenizer_file.h"
#include "megatron_cpp/resume/checkpointing.h"
#include "megatron_cpp/setup/datasets/dataset_provider.h"

namespace mcpp {

namespace {

/// Removes a tokenizer whose checkpoint could not be saved. A failure logs a warning: the reason of the failed save
/// matters more.
void remove_tokenizer(const Path& path, const Log& log) {
  try {
    remove_stored_file(path);
  } catch (const Error& error) {
    log.warn(str("cannot remove ", path.string(), ": ", error.what()));
  }
}

}  // namespace

std::optional<DType> dtype_option(const std::string& precision) {
  if (precision.empty()) return std::nullopt;
  const auto& names = EnumNames<Precision>::value;
  const auto named = std::ranges::find(names, precision);
  check_input(named != names.end(), "--precision: \"", precision, "\": must be one of fp32, bf16, fp16");
  return dtype_of(static_cast<Precision>(named - names.begin()));
}

void check_without_checkpoints(const Path& folder) {
  check_input(checkpoints_in(folder).empty(), "--save: ", folder.string(),
              " contains checkpoints, which are never changed; use a different folder");
}

Path find_valid_tokenizer(const std::string& requested, const CheckpointReader& reader, const Config& config,
                          const Log& log) {
  const Path path = requested.empty() ? tokenizer_of(reader.directory(), config) : Path(requested);
  const std::string& trained_with = reader.state().tokenizer_checksum;
  if (requested.empty() && !std::filesystem::exists(path)) {
    if (!trained_with.empty())
      log.warn(str(reader.directory().string(),
                   ": has no tokenizer next to it, so none is written; pass it as --tokenizer_model"));
    return "";
  }
  open_tokenizer(path, trained_with, config.model);
  return path;
}

Path save_model(const Path& folder, const std::string& tokenizer, const RunState& state, ShardSource& source,
                const Log& log) {
  const Path tokenizer_path = saved_tokenizer(folder);
  if (!tokenizer.empty()) write_stored_text(tokenizer_path, tokenizer);
  const auto world = make_self_communicator();
  try {
    return save_checkpoint(folder, state, source, *world, log);
  } catch (...) {
    if (!tokenizer.empty()) remove_tokenizer(tokenizer_path, log);
    throw;
  }
}

}  // namespace mcpp
