// Layout of a run's ranks and pipeline schedule, from its configuration.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/types.h"

namespace mcpp {

/// Parses the text of print_config(), of any version, to pairs ("section.key", TOML value). Skips lines that are not
/// keys.
std::vector<std::pair<std::string, std::string>> config_keys(std::string_view config);
/// Returns the value of one key; "" if missing.
std::string config_value(std::string_view config, std::string_view key);

/// Drawing of a pipeline schedule.
struct PipelineDrawing {
  std::string svg;
  std::string caption;
};

struct RunLayout {
  std::vector<std::string> rank_names = {};    ///< names by rank, such as "rank 3 (tp 1, pp 1)"
  std::vector<PipelineDrawing> pipeline = {};  ///< one drawing; empty without pipeline parallelism
  std::string problem = {};  ///< reason why the other members are empty, such as a configuration of a different version
};

/// Derives the layout from the text of print_config(). Does not throw for configurations that are invalid in this
/// version.
RunLayout make_run_layout(const std::string& config, i64 world_size);

}  // namespace mcpp
