// Export of the checkpoints of a run to Hugging Face's format while training continues.
#pragma once
#include <future>
#include <string>

#include "base/log.h"
#include "base/stored_ref.h"
#include "megatron_cpp/config/config.h"

namespace mcpp {

/// Name of the folder in checkpoint.save that has the exports.
inline constexpr std::string_view kHuggingfaceExports = "huggingface";

/// Exports checkpoints one after another in a thread of rank 0, to <save>/huggingface/iter_0000100/. An export is
/// written under a temporary name and renamed when it is complete and durable, so a process that dies leaves only a
/// temporary folder, which the next run removes. Failures, such as a full disk, log a warning and never end the run.
class HuggingfaceExports {
 public:
  /// Removes incomplete exports of dead processes. Throws BadInput if no model type can express the model.
  HuggingfaceExports(const Config& config, StoredRef<Log> log);
  ~HuggingfaceExports();

  /// Returns true if the checkpoint of this iteration is exported.
  bool is_due(i64 iteration) const;
  /// Starts to export a checkpoint. If the previous export is in flight, waits for it, for at most half of
  /// parallel.distributed_timeout_minutes, because other ranks wait, too; then logs a warning and exports nothing.
  void start(const Path& checkpoint);
  /// Returns the checkpoint that is being exported, which must not be removed; empty if there is none.
  Path in_use() const;

 private:
  void run(const Path& checkpoint) const;
  /// Returns true if no export is in flight after at most `seconds`.
  bool is_idle_within(double seconds) const;

  const Config& config_;
  const Log& log_;
  Path checkpoint_;         ///< checkpoint of the newest export
  std::future<void> work_;  // last member: uses all of the above
};

}  // namespace mcpp
