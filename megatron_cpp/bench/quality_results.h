// File with the results of a comparison, one JSON object per line, so that a stopped comparison can continue.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "base/file.h"
#include "megatron_cpp/bench/quality.h"
#include "megatron_cpp/config/config.h"

namespace mcpp {

/// Returns the keys that determine the result of a run and differ from their defaults, with their values in TOML. Omits
/// the seed and keys that only affect outputs or speed.
std::map<std::string, std::string> run_settings(const Config& config);

/// Finished runs of a comparison and the file that has them.
class QualityResults {
 public:
  /// Reads the runs of `file`, if it exists. Throws BadInput that names the line if the file has anything but results.
  explicit QualityResults(Path file);

  const std::vector<QualityRun>& runs() const { return runs_; }
  /// Returns true if the run is finished. Throws BadInput that names the keys if its settings differ from `planned`.
  bool contains(const QualityRun& planned) const;
  /// Adds a line about the host and the start of the comparison.
  void add_start();
  /// Adds a finished run. Durable when it returns.
  void add(QualityRun run);

 private:
  void append(const std::string& line);

  Path file_;
  std::string text_;  // content of the file
  std::vector<QualityRun> runs_;
};

/// Reads the losses on held-out text from the metrics of a run (logging.metrics_path), in the order of the iterations.
/// Losses that are not finite are NaN.
std::vector<HeldOutLoss> read_held_out_losses(const Path& metrics);

}  // namespace mcpp
