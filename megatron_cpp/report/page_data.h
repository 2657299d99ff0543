// Serialization of runs to JSON for the page's scripts.
#pragma once
#include <string>
#include <vector>

#include "megatron_cpp/report/run_history.h"

namespace mcpp {

/// One run of a report.
struct ReportRun {
  std::string name;  ///< name on the page
  Path file;
  RunHistory history;
  std::string config;  ///< used if no start of the history has one
};

/// Returns {"title", "program", "runs": [...]}. Numbers have seven digits; a constant column is a single number.
/// Contains no '<', so that no text can end its script element.
std::string page_data(const std::string& title, const std::vector<ReportRun>& runs);

/// Returns the indices of at most `max_count` of `size` records, evenly spread, including the first and the last.
std::vector<std::size_t> spread_indices(std::size_t size, std::size_t max_count);

}  // namespace mcpp
