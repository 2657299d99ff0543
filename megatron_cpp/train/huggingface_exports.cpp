#include "megatron_cpp/train/huggingface_exports.h"

#include <filesystem>
#include <memory>

#include "base/machine.h"
#include "checkpoint/directory/folder.h"
#include "checkpoint/directory/retention.h"
#include "megatron_cpp/huggingface/huggingface.h"
#include "megatron_cpp/resume/checkpointing.h"

namespace mcpp {

HuggingfaceExports::HuggingfaceExports(const Config& config, StoredRef<Log> log) : config_(config), log_(log) {
  exporting_family(exportable_model(config.model));  // throws if there is none
  const Path folder = Path(config.checkpoint.save) / kHuggingfaceExports;
  if (std::filesystem::exists(folder)) remove_stale_entries(folder, log_);
}

HuggingfaceExports::~HuggingfaceExports() {
  finish();
}

bool HuggingfaceExports::is_due(i64 iteration) const {
  const i64 interval = config_.checkpoint.export_hf_interval;
  return interval > 0 && iteration > 0 && iteration % interval == 0;
}

void HuggingfaceExports::start(const Path& checkpoint) {
  finish();
  work_ = std::async(std::launch::async, [this, checkpoint] {
    try {
      run(checkpoint);
    } catch (const std::exception& error) {
      log_.warn(str("the Hugging Face export of ", checkpoint.string(), " failed: ", error.what(),
                    "; `megatron_cpp checkpoint export-hf` repeats it"));
    }
  });
}

void HuggingfaceExports::finish() {
  if (work_.valid()) work_.get();
}

void HuggingfaceExports::run(const Path& checkpoint) const {
  const Path folder = checkpoint.parent_path() / kHuggingfaceExports, target = folder / checkpoint.filename();
  mcpp::create_directories(folder);
  const Path temporary = temporary_name(target), replaced = temporary_name(target);
  const std::shared_ptr<void> cleanup(nullptr, [&](void*) {
    std::error_code ignored;
    for (const Path& path : {temporary, replaced}) std::filesystem::remove_all(path, ignored);
  });
  CheckpointReader reader(checkpoint);
  const Path tokenizer = tokenizer_of(checkpoint, config_);
  export_huggingface(temporary, exportable_model(config_.model), reader,
                     {.tokenizer_model = std::filesystem::exists(tokenizer) ? tokenizer : Path(),
                      .tokens = read_special_tokens(reader.state(), checkpoint.string()),
                      .max_file_bytes = config_.checkpoint.export_hf_max_shard_size});
  // A user may have set the run back, so that it saves the same iteration again.
  if (std::filesystem::exists(target)) std::filesystem::rename(target, replaced);
  std::filesystem::rename(temporary, target);
  fsync_path(folder);
  log_.info(str("exported ", target.string()));
}

}  // namespace mcpp
