#include "data/preprocess/input_files.h"

#include <glob.h>

#include <algorithm>

#include "base/check.h"
#include "base/file.h"
#include "base/program/progress.h"
#include "base/strings.h"

namespace mcpp {
namespace {

std::vector<std::string> match_pattern(const std::string& pattern) {
  glob_t matches{};
  const int code = ::glob(pattern.c_str(), 0, nullptr, &matches);
  std::vector<std::string> names(matches.gl_pathv, matches.gl_pathv + matches.gl_pathc);
  ::globfree(&matches);
  check_input(code != GLOB_NOMATCH, pattern, ": no file matches this pattern");
  check_input(code == 0, pattern, ": cannot search for files that match this pattern");
  return names;
}

bool is_pattern(const std::string& name) {
  std::error_code unknown;
  return name.find_first_of("*?[") != std::string::npos &&
         !std::filesystem::exists(std::filesystem::symlink_status(name, unknown));
}

}  // namespace

std::vector<std::string> expand_patterns(const std::vector<std::string>& inputs) {
  std::vector<std::string> files;
  for (const std::string& input : inputs) {
    const std::vector<std::string> matches = is_pattern(input) ? match_pattern(input) : std::vector{input};
    for (const std::string& file : matches) check_path_exists(file);
    files.insert(files.end(), matches.begin(), matches.end());
  }
  return files;
}

InputFiles::InputFiles(const std::vector<std::string>& inputs, DocumentFormat format, std::size_t chunk_bytes)
    : paths_(expand_patterns(inputs)), format_(std::move(format)), chunk_bytes_(chunk_bytes) {
  for (const std::string& path : paths_) are_json_lines_.push_back(is_json_lines(path, format_.input_format));
  const bool all_have_sizes =
      std::ranges::all_of(paths_, [](const Path& path) { return std::filesystem::is_regular_file(path); });
  if (!all_have_sizes) return;
  for (const std::string& path : paths_) total_bytes_ += std::filesystem::file_size(path);
}

std::optional<InputFiles::Chunk> InputFiles::next() {
  while (true) {
    if (!source_) {
      if (file_ == paths_.size()) return std::nullopt;
      source_.emplace(paths_[file_++]);
    }
    Chunk result{.path = source_->path(), .chunk = {}, .progress = 0};
    result.chunk.is_json_lines = are_json_lines_[file_ - 1];
    const bool has_more =
        source_->next(result.chunk, chunk_bytes_, split_mode_for(result.chunk.is_json_lines, format_));
    result.progress = finished_bytes_ + source_->bytes_consumed();
    if (has_more) return result;
    finished_bytes_ = result.progress;
    source_.reset();
  }
}

std::string format_progress(u64 done_bytes, u64 total_bytes, double seconds) {
  constexpr std::size_t kColumns = 64;  // columns that the caller's own text leaves free
  return progress_text("", {.total = static_cast<double>(total_bytes)}, static_cast<double>(done_bytes), seconds, "",
                       kColumns)
      .substr(1);
}

}  // namespace mcpp
