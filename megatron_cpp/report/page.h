// One self-contained HTML page about runs.
#pragma once
#include <span>
#include <string>

#include "base/program/embedded_file.h"
#include "megatron_cpp/report/page_data.h"

namespace mcpp {

/// The files of page/, which CMake embeds: page.html, then style sheets and scripts in the order in which they are
/// read.
std::span<const EmbeddedFile> report_page_files();

/// The page: asks nothing of a network, and what it shows of runs is text, never markup.
std::string report_page(const std::string& title, const std::vector<ReportRun>& runs);

}  // namespace mcpp
