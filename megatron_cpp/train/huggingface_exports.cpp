#include "megatron_cpp/train/huggingface_exports.h"

#include <chrono>
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
  if (work_.valid()) work_.wait();
}

bool HuggingfaceExports::is_due(i64 iteration) const {
  const i64 interval = config_.checkpoint.export_hf_interval;
  return interval > 0 && iteration > 0 && iteration % interval == 0;
}

bool HuggingfaceExports::is_idle_within(double seconds) const {
  return !work_.valid() || work_.wait_for(std::chrono::duration<double>(seconds)) == std::future_status::ready;
}

Path HuggingfaceExports::in_use() const {
  return is_idle_within(0) ? Path() : checkpoint_;
}

void HuggingfaceExports::start(const Path& checkpoint) {
  if (!is_idle_within(config_.parallel.distributed_timeout_minutes * 60 / 2)) {
    log_.warn(str(checkpoint.string(), " is not exported, because the export of ", checkpoint_.string(),
                  " is still in flight; increase checkpoint.export_hf_interval, or use `megatron_cpp checkpoint "
                  "export-hf`"));
    return;
  }
  checkpoint_ = checkpoint;
  work_ = std::async(std::launch::async, [this, checkpoint] {
    try {
      run(checkpoint);
    } catch (const std::exception& error) {
      log_.warn(str("the Hugging Face export of ", checkpoint.string(), " failed: ", error.what(),
                    "; `megatron_cpp checkpoint export-hf` repeats it"));
    }
  });
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
