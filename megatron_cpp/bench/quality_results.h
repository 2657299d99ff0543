// File with the results of a comparison, one JSON object per line, so that a stopped comparison continues where it was.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "base/file.h"
#include "megatron_cpp/bench/quality.h"
#include "megatron_cpp/config/config.h"

namespace mcpp {

/// Returns the keys of a run that decide its result and differ from their defaults, with their values in TOML: all but
/// the seed, outputs and speed.
std::map<std::string, std::string> run_settings(const Config& config);

class QualityResults {
 public:
  /// Reads the runs of `file`, if it exists. Throws BadInput naming the line if it has anything else than results.
  explicit QualityResults(Path file);

  const std::vector<QualityRun>& runs() const { return runs_; }
  /// Returns true if the run is finished. Throws BadInput naming the keys that differ if it had different settings.
  bool contains(const QualityRun& planned) const;
  /// Adds a line about the host and the start of the comparison.
  void add_start();
  /// Adds a finished run. When it returns, the run is on the disk.
  void add(QualityRun run);

 private:
  void append(const std::string& line);

  Path file_;
  std::string text_;  // content of the file
  std::vector<QualityRun> runs_;
};

/// Returns the losses of held-out text in the metrics of a run (logging.metrics_path), in the order of the iterations.
std::vector<HeldOutLoss> read_held_out_losses(const Path& metrics);

}  // namespace mcpp
