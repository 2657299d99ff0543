// Self-contained HTML report about runs.
#pragma once
#include <span>
#include <string>

#include "base/program/program_files.h"
#include "megatron_cpp/report/page_data.h"

namespace mcpp {

/// Returns the files of page/, which CMake embeds: page.html, then style sheets and scripts in order of inclusion.
std::span<const EmbeddedFile> report_page_files();

/// Returns the page. It makes no network requests, and shows text of runs as text, never as markup.
std::string report_page(const std::string& title, const std::vector<ReportRun>& runs);

}  // namespace mcpp
