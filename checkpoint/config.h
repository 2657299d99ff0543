// Checkpoint configuration: where to save, how often, and how a run starts from a checkpoint. Keys have the names of
// Megatron-LM where it has the same key.
#pragma once
#include <string>
#include <vector>

#include "base/fields.h"

namespace mcpp {

/// Maximum of local_replicas. More copies only help if more nodes fail at once, which is too rare to justify the
/// memory.
inline constexpr i64 kMaxLocalReplicas = 4;

struct CheckpointConfig {
  std::string save;
  std::string load;
  i64 save_interval = 0;
  i64 keep_latest_k = 3;
  i64 save_retain_interval = 0;
  bool async_save = false;
  std::string local_save;
  i64 local_save_interval = 0;
  i64 local_keep_latest_k = 2;
  i64 local_replicas = 0;
  i64 local_ranks_per_node = 0;
  i64 export_hf_interval = 0;
  i64 export_hf_max_shard_size = 5'000'000'000;
  bool finetune = false;
  bool exit_on_missing_checkpoint = false;
  std::vector<std::string> allow_changed_keys;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("save", self.save, "folder for checkpoints; empty = save none");
    visit("load", self.load,
          "checkpoint folder to start from while save has no checkpoint (if it has none either, training starts from "
          "scratch); or a single checkpoint, from which the run resumes regardless of save");
    visit("save_interval", self.save_interval, "iterations between two saves; 0 = only at the end", at_least(0));
    visit("keep_latest_k", self.keep_latest_k, "number of newest checkpoints to keep; 0 = all", at_least(0));
    visit("save_retain_interval", self.save_retain_interval,
          "never remove checkpoints at multiples of this iteration; 0 = none", at_least(0));
    visit("async_save", self.async_save,
          "write checkpoints in the background from a copy in host memory; training waits for the copy only");
    visit("local_save", self.local_save,
          "folder on a disk or in the memory (/dev/shm/...) of each node for checkpoints between those in save; if "
          "newer, a run with the same layout resumes from them; empty = none");
    visit("local_save_interval", self.local_save_interval, "iterations between two saves in local_save", at_least(0));
    visit("local_keep_latest_k", self.local_keep_latest_k,
          "number of newest checkpoints to keep in local_save; 0 = all", at_least(0));
    visit("local_replicas", self.local_replicas,
          "number of other nodes that keep a copy of each rank's checkpoint in their local_save, from which the run "
          "resumes if a node is lost or a copy is damaged; 0 = none",
          between(0, kMaxLocalReplicas));
    visit("local_ranks_per_node", self.local_ranks_per_node,
          "to test recovery on one host: number of consecutive ranks that form a simulated node, which uses the folder "
          "node_<n> of local_save; 0 = the nodes on which the ranks run",
          at_least(0));
    visit("export_hf_interval", self.export_hf_interval,
          "iterations between two exports to Hugging Face's format, in the folder huggingface of save; a multiple of "
          "save_interval; 0 = none",
          at_least(0));
    visit("export_hf_max_shard_size", self.export_hf_max_shard_size,
          "size in bytes at which a new safetensors file of an export begins", at_least(1));
    visit("finetune", self.finetune, "load only the weights: iteration, optimizer and data order start from scratch");
    visit("exit_on_missing_checkpoint", self.exit_on_missing_checkpoint,
          "stop instead of starting from scratch if load has no checkpoint");
    visit("allow_changed_keys", self.allow_changed_keys,
          "run-defining keys, such as training.seed, that may differ from the checkpoint");
  }

  /// Returns every violated rule between fields, as "checkpoint.key: problem and allowed values".
  std::vector<std::string> conflicts() const;
};

}  // namespace mcpp
