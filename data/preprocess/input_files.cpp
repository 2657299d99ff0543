#include "data/preprocess/input_files.h"

#include <glob.h>

#include <algorithm>

#include "base/check.h"
#include "base/file.h"
#include "base/glob.h"
#include "base/object_store/s3_path.h"
#include "base/object_store/stored_file.h"
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

/// Returns the objects that match a pattern with * and ?, by ascending name. A * does not match a slash.
std::vector<std::string> match_objects(const std::string& pattern) {
  const std::size_t slash = pattern.rfind('/', pattern.find_first_of("*?"));
  const auto depth = std::ranges::count(pattern, '/');
  std::vector<std::string> names;
  for (const Path& object : objects_in(pattern.substr(0, slash)))
    if (matches_glob(object.string(), pattern) && std::ranges::count(object.string(), '/') == depth)
      names.push_back(object.string());
  check_input(!names.empty(), pattern, ": no object matches this pattern");
  return names;
}

/// Returns the objects that `name`, an s3:// path or pattern, stands for.
std::vector<std::string> expand_objects(const std::string& name) {
  const bool has_wildcard = name.find_first_of("*?") != std::string::npos;
  if (stored_file_exists(name)) return {name};
  check_input(has_wildcard, name, ": does not exist in the object store");
  return match_objects(name);
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
    if (is_s3_path(input)) {
      const std::vector<std::string> objects = expand_objects(input);
      files.insert(files.end(), objects.begin(), objects.end());
      continue;
    }
    const std::vector<std::string> matches = is_pattern(input) ? match_pattern(input) : std::vector{input};
    for (const std::string& file : matches) check_path_exists(file);
    files.insert(files.end(), matches.begin(), matches.end());
  }
  return files;
}

InputFiles::InputFiles(const std::vector<std::string>& inputs, DocumentFormat format, std::size_t chunk_bytes)
    : paths_(expand_patterns(inputs)), format_(std::move(format)), chunk_bytes_(chunk_bytes) {
  for (const std::string& path : paths_) are_json_lines_.push_back(is_json_lines(path, format_.input_format));
  u64 total = 0;
  for (const std::string& path : paths_) {
    const std::optional<i64> bytes = stored_file_bytes(path);
    if (!bytes) return;
    total += static_cast<u64>(*bytes);
  }
  total_bytes_ = total;
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
