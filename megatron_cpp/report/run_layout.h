// What the configuration of a run tells about its ranks: their places, and the pipeline's drawing.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/types.h"

namespace mcpp {

/// A text of print_config(), of whatever version, as ("section.key", value in TOML). What is none gives nothing.
std::vector<std::pair<std::string, std::string>> config_keys(std::string_view config);
/// The value of one of them; "" without.
std::string config_value(std::string_view config, std::string_view key);

/// What is drawn of a pipeline's schedule.
struct PipelineDrawing {
  std::string svg;
  std::string caption;
};

struct RunLayout {
  std::vector<std::string> rank_names = {};    ///< "rank 3 (tp 1, pp 1)", by rank
  std::vector<PipelineDrawing> pipeline = {};  ///< none without pipeline parallelism, else one
  std::string problem = {};                    ///< why the rest is empty: such as a configuration of another version
};

/// Of a configuration as print_config() gives it. Nothing is thrown for one that is not valid here.
RunLayout layout_of_run(const std::string& config, i64 world_size);

}  // namespace mcpp
