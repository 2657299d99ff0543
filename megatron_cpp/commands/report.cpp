// Command megatron_cpp report: one page about one or several runs.
#include <filesystem>

#include "base/number_format.h"
#include "base/object_store/s3_path.h"
#include "base/object_store/stored_file.h"
#include "base/strings.h"
#include "checkpoint/directory/folder.h"
#include "checkpoint/load/reader.h"
#include "megatron_cpp/commands/commands.h"
#include "megatron_cpp/config/arguments.h"
#include "megatron_cpp/report/page.h"

namespace mcpp {
namespace {

struct ReportOptions {
  std::vector<std::string> run;
  std::string output = "report.html";
  std::string title;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("run", self.run, "runs to show: the folder checkpoint.save or the file logging.metrics_path of each");
    visit("output", self.output, "file for the page");
    visit("title", self.title, "title of the page; empty = the names of the runs");
  }
};

/// Returns the metrics file of a run, or "" after adding a line to `problems`.
Path metrics_of(const Path& run, std::vector<std::string>& problems) {
  std::error_code error;
  if (is_s3_path(run)) {
    const Path object = run.filename().string().ends_with(".jsonl") ? run : run / "metrics.jsonl";
    if (stored_file_exists(object)) return local_copy(object);
    problems.push_back(str(run.string(), ": has no metrics.jsonl"));
    return {};
  }
  if (std::filesystem::is_regular_file(run, error)) return run;
  const Path file = run / "metrics.jsonl";
  if (!std::filesystem::is_directory(run, error))
    problems.push_back(str(run.string(), ": is neither a folder nor a file"));
  else if (!std::filesystem::is_regular_file(file, error))
    problems.push_back(str(run.string(), ": has no metrics.jsonl; pass the file of logging.metrics_path"));
  else
    return file;
  return {};
}

/// Returns the configuration stored in the folder's newest checkpoint, for runs that did not record theirs in the
/// metrics; "" if there is none.
std::string config_of_checkpoint(const Path& folder) {
  const std::vector<Path> checkpoints = checkpoints_in(folder);
  if (checkpoints.empty()) return {};
  try {
    return CheckpointReader(checkpoints.back()).state().config;
  } catch (const Error&) {
    return {};  // damage is reported when the checkpoint is loaded
  }
}

std::string name_of_run(const Path& file) {
  const Path name = file.filename() == "metrics.jsonl" && file.has_parent_path() ? file.parent_path() : file;
  return name.lexically_normal().string();
}

std::vector<Path> find_metrics(const ReportOptions& options) {
  std::vector<Path> files;
  std::vector<std::string> problems;
  std::error_code error;
  for (const std::string& run : options.run) {
    files.push_back(metrics_of(run, problems));
    if (std::filesystem::equivalent(files.back(), options.output, error))
      problems.push_back(str("--output=", options.output, ": is a file of the run, which the page would replace"));
  }
  if (options.output.empty()) problems.push_back("--output: must be a file");
  if (std::filesystem::is_directory(options.output, error))
    problems.push_back(str("--output=", options.output, ": is a folder; set a file in it"));
  check_input(problems.empty(), join(problems, "\n"));
  check_file_outside_checkpoints(options.output);
  return files;
}

}  // namespace

ExitCode report_command(Arguments args, Log& log) {
  const Usage usage{.command = "megatron_cpp report",
                    .summary = "Writes a self-contained HTML page: curves, memory, events and configurations.",
                    .positional = {"run"},
                    .required = {"run"}};
  ReportOptions options;
  if (!read_options(args, usage, options, log)) return ExitCode::Done;
  std::vector<ReportRun> runs;
  std::vector<std::string> names;
  for (const Path& file : find_metrics(options)) {
    ReportRun& run = runs.emplace_back(
        ReportRun{.name = name_of_run(file), .file = file, .history = read_run_history(file), .config = {}});
    if (run.history.starts.empty() && file.has_parent_path()) run.config = config_of_checkpoint(file.parent_path());
    names.push_back(run.name);
    if (run.history.steps.rows() == 0) log.warn(str(file.string(), ": has no iterations yet"));
  }
  const std::string page = report_page(options.title.empty() ? join(names, ", ") : options.title, runs);
  write_file_atomic(options.output, page);
  log.info(str("wrote ", options.output, " (", human_bytes(static_cast<double>(page.size())), "): ", runs.size(),
               runs.size() == 1 ? " run" : " runs"));
  return ExitCode::Done;
}

}  // namespace mcpp
