// Runs as the page's scripts read them, in JSON.
#pragma once
#include <string>
#include <vector>

#include "megatron_cpp/report/run_history.h"

namespace mcpp {

/// One run of a report.
struct ReportRun {
  std::string name;  ///< as the page calls it
  Path file;
  RunHistory history;
  std::string config;  ///< where no start of the history tells of one
};

/// {"title", "program", "runs": [...]}: columns of numbers with seven digits, a column that never changes as one
/// number. Contains no '<', so that no text of a run can end the element that it stands in.
std::string page_data(const std::string& title, const std::vector<ReportRun>& runs);

/// What is shown of ranks over time: of `size` records at most `most`, evenly spread, with the first and the last.
std::vector<std::size_t> evenly_spread(std::size_t size, std::size_t most);

}  // namespace mcpp
