// Checkpoint configuration: where to save, how often, and how a run starts from a checkpoint. Names are Megatron-LM's
// where it has one.
#pragma once
#include <string>
#include <vector>

#include "base/fields.h"

namespace mcpp {

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
  bool finetune = false;
  bool exit_on_missing_checkpoint = false;
  std::vector<std::string> allow_changed_keys;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("save", self.save, "folder to save checkpoints in; empty = save none");
    visit("load", self.load,
          "folder to start from while save has no checkpoint; when it has none either, training starts anew. Or one "
          "checkpoint to resume from, whatever save has");
    visit("save_interval", self.save_interval, "iterations between two saves; 0 = only at the end", at_least(0));
    visit("keep_latest_k", self.keep_latest_k, "newest checkpoints kept; 0 = all", at_least(0));
    visit("save_retain_interval", self.save_retain_interval,
          "checkpoints at multiples of this are never removed; 0 = none", at_least(0));
    visit("async_save", self.async_save,
          "write checkpoints beside the training, from a copy in host memory; the training waits only for the copy");
    visit("local_save", self.local_save,
          "folder on a disk of each node for checkpoints between those of save, from which a run on the same layout "
          "resumes when they are newer; empty = none");
    visit("local_save_interval", self.local_save_interval, "iterations between two saves in local_save", at_least(0));
    visit("local_keep_latest_k", self.local_keep_latest_k, "newest checkpoints kept in local_save; 0 = all",
          at_least(0));
    visit("finetune", self.finetune, "take only the weights of load: iteration, optimizer and data order start anew");
    visit("exit_on_missing_checkpoint", self.exit_on_missing_checkpoint,
          "stop instead of starting anew when load has no checkpoint");
    visit("allow_changed_keys", self.allow_changed_keys,
          "keys that define the run, such as training.seed, allowed to differ from the checkpoint");
  }

  /// Returns every violated rule between fields, as "checkpoint.key: what is wrong and what is allowed".
  std::vector<std::string> conflicts() const;
};

}  // namespace mcpp
