#include "checkpoint/config.h"

#include "base/file.h"
#include "base/object_store/s3_path.h"
#include "base/strings.h"

namespace mcpp {

std::vector<std::string> CheckpointConfig::conflicts() const {
  std::vector<std::string> errors;
  if (save_interval > 0 && save.empty())
    errors.push_back("checkpoint.save_interval: needs checkpoint.save, the folder to save in");
  if (async_save && save.empty())
    errors.push_back("checkpoint.async_save: needs checkpoint.save, the folder to save in");
  if (local_save.empty() != (local_save_interval == 0))
    errors.push_back("checkpoint.local_save: needs checkpoint.local_save_interval, and vice versa");
  if (!local_save.empty() && save.empty())
    errors.push_back("checkpoint.local_save: needs checkpoint.save too, which outlives the nodes");
  if (local_replicas > 0 && local_save.empty())
    errors.push_back("checkpoint.local_replicas: needs checkpoint.local_save, the folder on each node");
  if (local_replicas > 0 && local_keep_latest_k == 1)
    errors.push_back(
        "checkpoint.local_replicas: needs checkpoint.local_keep_latest_k of at least 2, because the previous "
        "checkpoint is used until the copies of a new one are complete");
  if (local_ranks_per_node > 0 && local_save.empty())
    errors.push_back("checkpoint.local_ranks_per_node: needs checkpoint.local_save, the folder on each node");
  if (export_hf_interval > 0 && (save_interval == 0 || export_hf_interval % save_interval != 0))
    errors.push_back(str("checkpoint.export_hf_interval: must be a multiple of checkpoint.save_interval, ",
                         save_interval, ", because saved checkpoints are exported"));
  if (export_hf_interval > 0 && is_s3_path(save))
    errors.push_back(
        "checkpoint.export_hf_interval: needs a local folder as checkpoint.save, not an s3:// path; export checkpoints "
        "with `megatron_cpp checkpoint export-hf`");
  if (is_s3_path(local_save))
    errors.push_back("checkpoint.local_save: is a folder on a disk of each node, not an s3:// path");
  if (finetune && load.empty())
    errors.push_back("checkpoint.finetune: needs checkpoint.load, the checkpoint to start from");
  const auto as_folder = [](const std::string& path) { return (Path(path) / "").lexically_normal(); };
  if (finetune && !load.empty() && as_folder(load) == as_folder(save)) {
    errors.push_back("checkpoint.finetune: needs a save folder other than load, so that the two runs do not mix");
  }
  if (!local_save.empty() && as_folder(local_save) == as_folder(save))
    errors.push_back("checkpoint.local_save: must be a different folder than checkpoint.save");
  if (exit_on_missing_checkpoint && load.empty()) {
    errors.push_back("checkpoint.exit_on_missing_checkpoint: needs checkpoint.load");
  }
  return errors;
}

}  // namespace mcpp
