// Self-contained HTML report about runs.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "base/program/program_files.h"
#include "megatron_cpp/report/run_history.h"

namespace mcpp {

// Serialization of runs to JSON for the page's scripts.

/// One run of a report.
struct ReportRun {
  std::string name;  ///< name on the page
  Path file;
  RunHistory history;
  std::string config;  ///< configuration to use if the starts recorded in the history have none
};

/// Returns {"title", "program", "runs": [...]}. Numbers have seven digits; a constant column is a single number.
/// Contains no '<', so that no text can end its script element.
std::string page_data(const std::string& title, const std::vector<ReportRun>& runs);

/// Returns the indices of at most `max_count` of `size` records, evenly spaced, including the first and the last.
std::vector<std::size_t> evenly_spaced_indices(std::size_t size, std::size_t max_count);

/// Returns the files of page/, which CMake embeds: page.html, then style sheets and scripts in order of inclusion.
std::span<const EmbeddedFile> report_page_files();

/// Returns the page. It makes no network requests, and displays text of runs as plain text.
std::string report_page(const std::string& title, const std::vector<ReportRun>& runs);

}  // namespace mcpp
